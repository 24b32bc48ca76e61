"""Boxes with names as pictures and files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from phalanx.data.image import palette
from phalanx.data.samples import Image
from phalanx.families.detection.data.source import Objects
from phalanx.runtime.results import Found

IGNORED = (128, 128, 128)  # the colour of ignored objects
Colour = tuple[int, int, int]


def drawn(image: Image, boxes: Sequence[Sequence[float]], captions: Sequence[str], colours: Sequence[Colour]) -> Image:
    """`image` with boxes in their colours, each with a plate for its caption."""
    canvas = PIL.Image.fromarray(image)
    pen = PIL.ImageDraw.Draw(canvas)
    side = max(image.shape[:2])
    width, font = max(1, side // 300), _font(max(9, side // 50))
    for (x0, y0, x1, y1), caption, colour in zip(boxes, captions, colours, strict=True):
        pen.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=colour, width=width)
        if caption:
            left, top, right, bottom = pen.textbbox((0, 0), caption, font=font)
            w, h = right - left + 3, bottom - top + 3
            x, y = max(0, min(x0, image.shape[1] - w)), max(0, y0 - h)  # above the box, or inside where there is no room
            pen.rectangle((x, y, x + w, y + h), fill=colour)
            pen.text((x + 2 - left, y + 1 - top), caption, font=font, fill=_ink_on(colour))
    return np.asarray(canvas)


def with_found(image: Image, found: Sequence[Found]) -> Image:
    """`image` with what was found on it, the most probable last and so in front."""
    rows = sorted(found, key=lambda one: one.score)
    captions = [f'{one.name} {one.score:.2f}' for one in rows]
    return drawn(image, [one.box for one in rows], captions, [_colour(one.label) for one in rows])


def with_objects(image: Image, objects: Objects, class_names: Sequence[str]) -> Image:
    """`image` with what is true of it; ignored objects are grey."""
    colours = [IGNORED if ignored else _colour(label) for label, ignored in zip(objects.classes, objects.ignored, strict=True)]
    return drawn(image, objects.boxes.tolist(), [class_names[label] for label in objects.classes], colours)


def compared(
    image: Image, size: tuple[int, int], truth: Objects, class_names: Sequence[str], found: Sequence[Found]
) -> list[tuple[str, Image]]:
    """Captioned pictures of `size` (height, width): the boxes that are true and those that were found, over the image."""
    image = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR).astype(np.uint8, copy=False)
    return [('truth', with_objects(image, truth, class_names)), ('prediction', with_found(image, found))]


def save(found: Sequence[Found], image: Image, stem: Path, *, shown_from: float) -> list[Path]:
    """Writes all of `found` as JSON, and over `image` what has at least the score `shown_from`; returns both files."""
    listed, over = stem.with_name(f'{stem.name}.json'), stem.with_name(f'{stem.name}_overlay.jpg')
    listed.write_text(json.dumps([asdict(one) for one in found], indent=1), encoding='utf-8')
    shown = [one for one in found if one.score >= shown_from]
    PIL.Image.fromarray(with_found(image, shown)).save(over, quality=92)
    return [listed, over]


def _colour(label: int) -> Colour:
    r, g, b = _colours(int(label) + 1)[label].tolist()
    return r, g, b


@cache
def _colours(count: int) -> Image:
    return palette(count)


def _ink_on(colour: Colour) -> Colour:
    """Black or white, whichever can be read on `colour`."""
    r, g, b = colour
    return (0, 0, 0) if 0.299 * r + 0.587 * g + 0.114 * b > 140 else (255, 255, 255)


@cache
def _font(size: int) -> PIL.ImageFont.ImageFont | PIL.ImageFont.FreeTypeFont:
    return PIL.ImageFont.load_default(size)
