"""Outlines of texts as pictures and files."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.data.image import overlay
from phalanx.data.samples import Image
from phalanx.families.text_detection.data.source import Texts
from phalanx.families.writing import Writers, picture_writer, write_json, write_picture, write_text
from phalanx.runtime.prepare import resized
from phalanx.runtime.reading import cut_out
from phalanx.runtime.results import TextRegion

TEXT_COLOUR, IGNORED_COLOUR = (255, 40, 90), (128, 128, 128)  # colours
FINENESS = 3  # bits of a pixel that OpenCV draws with


def draw_outlines(image: Image, outlines: Sequence[npt.ArrayLike], colours: Sequence[Sequence[int]]) -> Image:
    """`image` with outlines [n, 2] in their colours, lightly filled."""
    lines, areas = np.ascontiguousarray(image).copy(), np.ascontiguousarray(image).copy()
    width = max(1, max(image.shape[:2]) // 400)
    for points, colour in zip(outlines, colours, strict=True):
        places = (np.asarray(points, np.float64) * 2**FINENESS).round().astype(np.int32)
        cv2.fillPoly(areas, [places], colour, shift=FINENESS)
        cv2.polylines(lines, [places], True, colour, width, cv2.LINE_AA, shift=FINENESS)
    return overlay(lines, areas, 0.2)


def draw_texts(image: Image, texts: Texts) -> Image:
    """`image` with the texts that are there; those to be ignored are grey."""
    return draw_outlines(image, texts.outlines, [IGNORED_COLOUR if ignored else TEXT_COLOUR for ignored in texts.ignored])


def draw_regions(image: Image, found: Sequence[TextRegion]) -> Image:
    """`image` with the texts that were found."""
    return draw_outlines(image, [one.points for one in found], [TEXT_COLOUR] * len(found))


def compared(image: Image, size: tuple[int, int], truth: Texts, found: Sequence[TextRegion]) -> list[tuple[str, Image]]:
    """Captioned pictures of `size` (height, width): the texts that are there and those that were found, over the image."""
    image = resized(image, *size)
    return [('truth', draw_texts(image, truth)), ('prediction', draw_regions(image, found))]


def as_icdar(found: Sequence[TextRegion], image: Image, stem: Path) -> list[Path]:
    """The text format of ICDAR 2015: a line `x,y,x,y,...` a text, its points in whole pixels."""
    lines = (','.join(f'{value:.0f}' for point in one.points for value in point) for one in found)
    return write_text(stem, '.txt', ''.join(f'{line}\n' for line in lines))


def as_crops(found: Sequence[TextRegion], image: Image, stem: Path) -> list[Path]:
    """Each text cut out and made upright, as a recogniser takes it, with its number in the name: `page_001.jpg`."""
    cuts = (cut_out(image, one.points) for one in found)
    return [file for number, cut in enumerate(cuts, 1) for file in write_picture(stem, f'_{number:03}.jpg', cut)]


WRITERS = Writers(
    draw_regions,
    {'json': write_json, 'txt': as_icdar, 'crops': as_crops, 'pictures': picture_writer(draw_regions, '_overlay.jpg')},
    default=('json', 'pictures'),
)
