"""Scenes of handwritten digits over textured backgrounds, with labels, boxes and texts.

A scene is a function of (seed, split, number) alone; only 1797 digits of 8 x 8 pixels are stored (digits.md beside this file
gives their source). Shapes: H, W of the scene, h, w of a part of it, N digits, M lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.data.samples import Draw, GeneratedSource, Image, Rng, Split

DIGITS = '0123456789'
EDGE = 255  # the label between ink and background, where a pixel is some of both
NUM_EVAL_DIGITS = 297  # the last ones, mostly of other writers than the rest

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Scene:
    """Picture with its annotations."""

    image: Image  # [H, W, 3]
    labels: npt.NDArray[np.uint8]  # [H, W]: 0 background, 1 to 10 the ink of digits 0 to 9, EDGE around it
    boxes: Array  # [N, 4] xyxy in pixels, tight around the ink
    classes: npt.NDArray[np.int64]  # [N] digits 0 to 9
    texts: tuple[str, ...]  # M numbers, written in lines
    text_boxes: Array  # [M, 4] xyxy in pixels, tight around the ink of each line


def render_scene(
    number: int,
    split: Split,
    *,
    size: tuple[int, int] = (128, 192),
    seed: int = 0,
    lines: tuple[int, int] = (0, 2),
    digits_a_line: tuple[int, int] = (2, 5),
    singles: tuple[int, int] = (2, 6),
    digit_height: tuple[float, float] = (20, 52),
) -> Scene:
    """Render scene `number` of `split`, of `size` (height, width): single digits and lines of digits that do not overlap.

    `lines`, `digits_a_line` and `singles` are least and greatest counts, `digit_height` the range of sizes in pixels. Digits
    without a free place in a crowded scene are left out.
    """
    rng = np.random.default_rng((seed, ('train', 'eval').index(split), number))
    canvas = _Canvas(_background(*size, rng))
    for _ in range(rng.integers(*lines, endpoint=True)):
        canvas.write(int(rng.integers(*digits_a_line, endpoint=True)), split, digit_height, rng, is_line=True)
    for _ in range(rng.integers(*singles, endpoint=True)):
        canvas.write(1, split, digit_height, rng, is_line=False)
    return canvas.finish(rng)


@dataclass(frozen=True, kw_only=True)
class DigitScenes:
    """Digits over textures, pictures of `size` (height, width) in pixels; the two splits use different handwritten digits.

    `digit_height`: the smallest and the largest digit, in pixels.
    """

    class_names: ClassVar[tuple[str, ...]] = tuple(DIGITS)

    train_scenes: int = 2000
    eval_scenes: int = 200
    size: tuple[int, int] = (128, 192)
    digit_height: tuple[float, float] = (20, 52)
    seed: int = 0

    def split(self, split: Split) -> Series:
        return Series(split, self.train_scenes if split == 'train' else self.eval_scenes, self)

    def truth(self, scene: Scene) -> Any:
        """Annotation of a scene for a family."""
        raise NotImplementedError


@dataclass(frozen=True)
class Series(GeneratedSource):
    """Source of the scenes of one split."""

    kind = 'digit scene'
    notes: ClassVar[Mapping[str, int]] = MappingProxyType({})  # nothing is odd about them

    options: DigitScenes

    def read(self, draw: Draw) -> tuple[Image, Any]:
        of = self.options
        drawn = render_scene(draw.index, self.split, size=of.size, digit_height=of.digit_height, seed=of.seed)
        return drawn.image, of.truth(drawn)


class _Canvas:
    """Scene under construction."""

    def __init__(self, picture: Array) -> None:
        self.picture = picture  # [H, W, 3] 0 to 255
        H, W = picture.shape[:2]
        self.labels = np.zeros((H, W), np.uint8)
        self.taken = np.zeros((H, W), np.uint8)  # where ink and its surroundings are
        self.boxes: list[Array] = []
        self.classes: list[int] = []
        self.texts: list[str] = []
        self.text_boxes: list[Array] = []

    def write(self, count: int, split: Split, heights: tuple[float, float], rng: Rng, *, is_line: bool) -> None:
        """Write `count` digits of one size and colour side by side, if a random free place is found."""
        # random digits in one size, smaller at each attempt to find room
        chosen = [_pick(split, rng) for _ in range(count)]
        height = math.exp(rng.uniform(*np.log(heights)))
        for _ in range(4):
            placed = _side_by_side([bitmap for bitmap, _ in chosen], height, rng)
            h = max(top + glyph.shape[0] for glyph, top, _ in placed)
            w = max(left + glyph.shape[1] for glyph, _, left in placed)
            place = self.free_place(h, w, rng)
            if place is not None:
                break
            height *= 0.8  # smaller ones find room more easily
        else:
            return
        # occupy the place, draw the digits, and note the line's text and box
        y, x = place
        self.taken[y : y + h, x : x + w] = 1
        colour = _ink_colour(rng)
        for (glyph, top, left), (_, digit) in zip(placed, chosen, strict=True):
            self.draw(glyph, digit, y + top, x + left, colour)
        if is_line:
            self.texts.append(''.join(DIGITS[digit] for _, digit in chosen))
            boxes = np.stack(self.boxes[-count:])
            self.text_boxes.append(np.concatenate([boxes[:, :2].min(0), boxes[:, 2:].max(0)]))

    def free_place(self, h: int, w: int, rng: Rng) -> tuple[int, int] | None:
        """Random corner (y, x) of a free area, with a margin to other digits and room for a shadow; None if not found."""
        H, W = self.taken.shape
        if h + 4 > H or w + 4 > W:
            return None
        for _ in range(12):
            y, x = int(rng.integers(2, H - h - 1)), int(rng.integers(2, W - w - 1))
            if not self.taken[max(0, y - 5) : y + h + 5, max(0, x - 5) : x + w + 5].any():
                return y, x
        return None

    def draw(self, glyph: Array, digit: int, y: int, x: int, colour: Array) -> None:
        """Blend the ink [h, w] into the picture, with a soft shadow to its lower right, and add its labels and box."""
        h, w = glyph.shape
        under = self.picture[y : y + h + 2, x : x + w + 2]  # at the far edges the area leaves room for the shadow
        shadow = np.zeros(under.shape[:2], np.float32)
        shadow[2:, 2:] = glyph
        under *= 1 - 0.4 * cv2.blur(shadow, (3, 3))[..., None]
        inked = self.picture[y : y + h, x : x + w]
        inked += glyph[..., None] * (colour - inked)
        labels, ink = self.labels[y : y + h, x : x + w], (glyph > 0.5).view(np.uint8)
        labels[cv2.dilate(ink, np.ones((3, 3), np.uint8)) > 0] = EDGE
        labels[ink > 0] = digit + 1
        left, top, width, height = cv2.boundingRect(ink)
        self.boxes.append(np.array([x + left, y + top, x + left + width, y + top + height], np.float32))
        self.classes.append(digit)

    def finish(self, rng: Rng) -> Scene:
        strength = int(rng.integers(2, 14))
        grain = rng.integers(-strength, strength, size=self.labels.shape, endpoint=True, dtype=np.int8)
        image = np.clip(self.picture + grain[..., None], 0, 255).astype(np.uint8)
        return Scene(
            image,
            self.labels,
            np.array(self.boxes, np.float32).reshape(-1, 4),
            np.array(self.classes, np.int64),
            tuple(self.texts),
            np.array(self.text_boxes, np.float32).reshape(-1, 4),
        )


def _pick(split: Split, rng: Rng) -> tuple[Array, int]:
    """Random handwritten digit of `split`: ink [8, 8], 0 to 1, and its class."""
    images, labels = _digits()
    first_eval = len(labels) - NUM_EVAL_DIGITS
    index = rng.integers(0, first_eval) if split == 'train' else rng.integers(first_eval, len(labels))
    return images[index], int(labels[index])


@cache
def _digits() -> tuple[Array, npt.NDArray[np.uint8]]:
    with np.load(Path(__file__).with_name('digits.npz')) as stored:
        return stored['images'].astype(np.float32) / 16, stored['labels']


def _side_by_side(bitmaps: Sequence[Array], height: float, rng: Rng) -> list[tuple[Array, int, int]]:
    """Ink [h, w] of each digit, with its top and left in pixels; tops vary as in handwriting."""
    placed, left = [], 0
    for bitmap in bitmaps:
        glyph, top = _glyph(bitmap, height, rng), int(rng.integers(0, 2 + int(height / 12)))
        placed.append((glyph, top, left))
        left += glyph.shape[1] + int(rng.integers(1, 2 + int(height / 8)))
    return placed


def _glyph(bitmap: Array, height: float, rng: Rng) -> Array:
    """Ink coverage [h, w] of a digit about `height` pixels high, rotated and slanted a little.

    A margin of one pixel is left around the ink, for its edge.
    """
    scale, angle, slant = height / 8, math.radians(rng.uniform(-14, 14)), rng.uniform(-0.25, 0.25)
    wide = rng.uniform(0.85, 1.15)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    linear = turn @ np.array([[wide, slant], [0, 1]]) * scale
    side = math.ceil(2 * height) + 4
    offset = np.full(2, side / 2) - linear @ np.full(2, 3.5)
    to_canvas = np.column_stack([linear, offset])
    blurred = np.asarray(cv2.warpAffine(bitmap, to_canvas, (side, side), flags=cv2.INTER_CUBIC), np.float32)
    threshold = rng.uniform(0.28, 0.42)  # a fatter or a thinner pen
    slope = np.float32(max(1.2 * scale, 2))  # makes the blur of enlarging about a pixel wide; at 2 no ink is left on bare paper
    ink: Array = np.clip((blurred - threshold) * slope + 0.5, 0, 1)
    x, y, w, h = cv2.boundingRect((ink > 0.05).view(np.uint8))
    return ink[y - 1 : y + h + 1, x - 1 : x + w + 1]


def _ink_colour(rng: Rng) -> Array:
    """Vivid colour [3], darker than backgrounds: networks learn much more slowly where ink may also be lighter."""
    choices = _rgb(rng.uniform((0, 150, 40), (180, 255, 180), size=(2, 3)))
    darker: Array = choices[(choices @ np.array([0.299, 0.587, 0.114], np.float32)).argmin()]
    return darker


def _background(H: int, W: int, rng: Rng) -> Array:
    """Background [H, W, 3], 0 to 255: two pale colours mixed by a smooth pattern, with some blots."""
    first, second = _rgb(rng.uniform((0, 15, 150), (180, 110, 255), size=(2, 3)))
    mixture = _PATTERNS[rng.integers(len(_PATTERNS))](H, W, rng)
    for _ in range(rng.integers(0, 6)):
        centre = (int(rng.integers(0, W)), int(rng.integers(0, H)))
        axes = (int(rng.integers(3, 4 + W // 6)), int(rng.integers(2, 3 + H // 8)))
        thickness = -1 if rng.random() < 0.4 else int(rng.integers(1, 6))
        cv2.ellipse(mixture, centre, axes, rng.uniform(0, 180), 0, 360, rng.random(), thickness, cv2.LINE_8)
    picture: Array = first + cv2.blur(mixture, (3, 3))[..., None] * (second - first)
    return picture


def _clouds(H: int, W: int, rng: Rng) -> Array:
    return np.clip(_smooth_noise(H, W, int(rng.integers(3, 12)), rng), 0, 1)


def _gradient(H: int, W: int, rng: Rng) -> Array:
    along = _along(H, W, rng)
    return np.clip(along / max(H, W) + 0.5 + 0.2 * (_smooth_noise(H, W, 4, rng) - 0.5), 0, 1)


def _stripes(H: int, W: int, rng: Rng) -> Array:
    period, sharpness = rng.uniform(8, 48), rng.uniform(0.5, 3)
    waves = np.sin(_along(H, W, rng) * np.float32(2 * math.pi / period) + 4 * _smooth_noise(H, W, 3, rng))
    stripes: Array = np.clip(0.5 + np.float32(0.5 * sharpness) * waves, 0, 1)
    return stripes


_PATTERNS = (_clouds, _gradient, _stripes)


def _smooth_noise(H: int, W: int, cells: int, rng: Rng) -> Array:
    """Smooth noise [H, W], mostly 0 to 1, interpolated from a grid of `cells` across."""
    grid = rng.random((max(2, cells * H // W), cells), dtype=np.float32)
    return np.asarray(cv2.resize(grid, (W, H), interpolation=cv2.INTER_CUBIC), np.float32)


def _along(H: int, W: int, rng: Rng) -> Array:
    """Distance of each pixel from the centre along a random direction: [H, W] in pixels."""
    angle = rng.uniform(0, 2 * math.pi)
    y, x = np.arange(H, dtype=np.float32) - H / 2, np.arange(W, dtype=np.float32) - W / 2
    along: Array = y[:, None] * np.float32(math.sin(angle)) + x[None, :] * np.float32(math.cos(angle))
    return along


def _rgb(hsv: npt.NDArray[np.float64]) -> Array:
    """RGB colours [N, 3], 0 to 255, from hue (0 to 180), saturation and value (0 to 255)."""
    return np.asarray(cv2.cvtColor(hsv.astype(np.uint8)[None], cv2.COLOR_HSV2RGB)[0], np.float32)
