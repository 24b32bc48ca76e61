"""Regions of an image: polygons, and run lengths in the order of COCO."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from phalanx.data.checks import AnnotationError, shorten
from phalanx.data.image import LabelMap

CORNERS = 64  # of a polygon in the place of an ellipse
DIGITS = 3  # decimals of a coordinate that is written
Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels
Corners = Sequence[Sequence[float]]  # x, y of the corners of a polygon
Mask = npt.NDArray[np.bool_]  # [H, W]
Points = npt.NDArray[np.float64]  # [N, 2] x, y; the first pixel lies between 0 and 1


class BoxColumns(NamedTuple):
    """Boxes of images: a million objects of Python would take gigabytes."""

    images: Sequence[int]  # number of each box's image
    boxes: Sequence[float]  # x0, y0, x1, y1 of each, one after the other
    labels: Sequence[int]
    areas: Sequence[float]  # as annotated; else NaN
    ignored: Sequence[bool]


@dataclass(frozen=True)
class Polygon:
    """Pixels whose centre lies inside by the even-odd rule."""

    points: Points

    @property
    def area(self) -> float:
        x, y = self.points.T
        return float(abs(x @ np.concatenate((y[1:], y[:1])) - y @ np.concatenate((x[1:], x[:1]))) / 2)  # np.roll is slow

    def paint(self, canvas: LabelMap, value: int) -> None:
        # Only within its box: an image may have hundreds of polygons.
        ends = np.floor(self.points.min(axis=0)), np.ceil(self.points.max(axis=0))
        (left, top), (right, bottom) = np.clip(ends, 0, canvas.shape[::-1]).astype(int).tolist()
        canvas, points = canvas[top:bottom, left:right], self.points - (left, top)
        H, W = canvas.shape
        toggles = np.zeros((H, W + 1), np.bool_)  # the first pixel of a row that has the edge on its left
        for (x0, y0), (x1, y1) in zip(points, np.roll(points, -1, axis=0), strict=True):
            first, last = np.clip(np.ceil(np.array([min(y0, y1), max(y0, y1)]) - 0.5), 0, H).astype(int)
            if first == last:
                continue
            rows = np.arange(first, last)
            crossings = x0 + (rows + 0.5 - y0) * (x1 - x0) / (y1 - y0)
            toggles[rows, np.clip(np.ceil(crossings - 0.5), 0, W).astype(int)] ^= True
        canvas[np.logical_xor.accumulate(toggles[:, :-1], axis=1)] = value


@dataclass(frozen=True)
class Runs:
    """Run lengths of pixels, column by column, alternately outside and inside; they sum to the image."""

    lengths: npt.NDArray[np.int64]

    @property
    def area(self) -> float:
        return float(self.lengths[1::2].sum())

    def box(self, height: int) -> Box | None:
        """Box (x0, y0, x1, y1) around the pixels inside, in an image of `height` rows; None without any.

        Without painting them: the size that a file states may be any.
        """
        ends = self.lengths.cumsum()[1::2]
        begins = ends - self.lengths[1::2]
        begins, ends = begins[begins < ends], ends[begins < ends]
        if not len(begins):
            return None
        first, last = begins // height, (ends - 1) // height
        is_one = first == last  # a run over several columns reaches the bottom of one and the top of the next
        top, bottom = np.where(is_one, begins % height, 0), np.where(is_one, (ends - 1) % height, height - 1)
        return float(first.min()), float(top.min()), float(last.max() + 1), float(bottom.max() + 1)

    def paint(self, canvas: LabelMap, value: int) -> None:
        inside = np.repeat(np.arange(len(self.lengths)) % 2 == 1, self.lengths)
        canvas[inside.reshape(canvas.shape, order='F')] = value


Shape = Polygon | Runs


def polygon(points: Any, size: tuple[int, int], where: str) -> Polygon:
    """Make a polygon of points (x, y). Raises AnnotationError for fewer than 3, for non-numbers and points far outside."""
    if not isinstance(points, list) or not all(isinstance(point, list | tuple) and len(point) == 2 for point in points):
        raise AnnotationError(f'{where}: expected a list of points x, y, got {shorten(points)}')
    if not all(type(value) in (int, float) for point in points for value in point):
        raise AnnotationError(f'{where}: has a coordinate that is not a number')
    if len(points) < 3:
        raise AnnotationError(f'{where}: a polygon needs 3 points, got {len(points)}')
    if not all(-side <= value <= 2 * side for point in points for value, side in zip(point, size, strict=True)):
        raise AnnotationError(f'{where}: has points far outside the image of {size[0]} x {size[1]} pixels')
    return Polygon(np.array(points, np.float64))


def runs(counts: Any, size: tuple[int, int], where: str) -> Runs:
    """Make runs of lengths, or of COCO's compressed text. Raises AnnotationError if they do not fill the image."""
    lengths = decompress_runs(counts, where) if isinstance(counts, str) else counts
    if not isinstance(lengths, list) or not all(type(length) is int and length >= 0 for length in lengths):
        raise AnnotationError(f'{where}: expected run lengths, got {shorten(counts)}')
    if sum(lengths) != size[0] * size[1]:
        raise AnnotationError(f'{where}: run lengths add up to {sum(lengths)}, but the image has {size[0]} x {size[1]} pixels')
    return Runs(np.array(lengths, np.int64))


def sized_runs(segmentation: dict[str, Any], size: tuple[int, int], where: str) -> Runs:
    """Make runs of COCO's `{size: [height, width], counts: ...}`. Raises AnnotationError if they are for another image."""
    said = segmentation.get('size')
    if said != [size[1], size[0]]:
        raise AnnotationError(f'{where}: its run lengths are for a size (height, width) of {said}, the image is {size[::-1]}')
    return runs(segmentation.get('counts'), size, where)


def rectangle(box: tuple[float, float, float, float]) -> Polygon:
    return Polygon(np.array(corners_of(*box), np.float64))


def bounding_box(corners: Corners) -> Box:
    xs, ys = [float(corner[0]) for corner in corners], [float(corner[1]) for corner in corners]
    return min(xs), min(ys), max(xs), max(ys)


def corners_of(x0: float, y0: float, x1: float, y1: float) -> list[list[float]]:
    """Corners of a box, clockwise from the upper left."""
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]


def arrange_corners(corners: Corners) -> list[Sequence[float]]:
    """Four corners clockwise from the upper left, of two on the left and two on the right."""
    ordered = sorted(corners, key=lambda corner: corner[0])
    (a, d), (b, c) = (sorted(pair, key=lambda corner: corner[1]) for pair in (ordered[:2], ordered[2:]))
    return [a, b, c, d]


def rotate(points: list[list[float]], degrees: float, centre: tuple[float, float]) -> list[list[float]]:
    """The points after a clockwise rotation about `centre`."""
    angle, (x, y) = math.radians(degrees), centre
    cos, sin = math.cos(angle), math.sin(angle)
    return [[x + (px - x) * cos - (py - y) * sin, y + (px - x) * sin + (py - y) * cos] for px, py in points]


def ellipse(x: float, y: float, rx: float, ry: float, degrees: float = 0.0) -> list[list[float]]:
    """Corners of a polygon like the ellipse about (x, y) with these radii, rotated clockwise."""
    angles = [2 * math.pi * n / CORNERS for n in range(CORNERS)]
    return rotate([[x + rx * math.cos(angle), y + ry * math.sin(angle)] for angle in angles], degrees, (x, y))


def encode_runs(mask: Mask) -> Runs:
    """Encode the True pixels as runs."""
    flat = np.concatenate([[False], mask.flatten(order='F')])
    edges = np.flatnonzero(flat[1:] != flat[:-1])
    return Runs(np.diff(np.concatenate([[0], edges, [mask.size]])))


def decompress_runs(text: str, where: str) -> list[int]:
    """Decompress COCO's text of run lengths: 5 bits per character, lowest first; bit 32 means more follow, bit 16 is the sign.

    From the fourth on, numbers are differences to the length two before (pycocotools, rleFrString).
    """
    lengths: list[int] = []
    value = place = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or place > 6:
            raise AnnotationError(f'{where}: {shorten(text)} is not a text of run lengths')
        value |= (bits & 31) << 5 * place
        place += 1
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << 5 * place
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value = place = 0
    if place:
        raise AnnotationError(f'{where}: the text of run lengths is cut off')
    return lengths
