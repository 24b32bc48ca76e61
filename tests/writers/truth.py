"""One data set in plain numbers, which other people's libraries write (write.py) and Phalanx reads (test_other_writers.py)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

CLASSES = ('Apfel', 'röter Apfel', 'Straße')


class Shape(NamedTuple):
    label: str
    points: tuple[tuple[int, int], ...]  # an axis-aligned rectangle is its upper left and lower right corner
    hole: tuple[tuple[int, int], ...] = ()


class Picture(NamedTuple):
    stem: str
    split: str
    size: tuple[int, int]  # width, height
    shapes: tuple[Shape, ...]


PICTURES = (
    Picture('a 1', 'train', (96, 80), (Shape('Apfel', ((10, 8), (40, 30))), Shape('röter Apfel', ((50, 20), (80, 60))))),
    Picture(
        'a2',
        'train',
        (80, 96),
        (Shape('Straße', ((20, 30), (50, 30), (50, 80), (20, 80)), ((30, 40), (40, 40), (40, 60), (30, 60))),),
    ),
    Picture('a3', 'train', (96, 80), (Shape('Apfel', ((60, 10), (90, 10), (75, 50))),)),
    Picture('leer', 'train', (64, 64), ()),
    Picture('b1', 'val', (96, 80), (Shape('röter Apfel', ((30, 30), (70, 60))), Shape('Straße', ((2, 2), (20, 22))))),
    Picture('c1', 'test', (96, 80), (Shape('Apfel', ((5, 50), (45, 75))),)),
)
UNANNOTATED = 'offen'  # the stem of an image that no annotation knows


def corners(shape: Shape) -> list[tuple[int, int]]:
    if len(shape.points) > 2:
        return list(shape.points)
    (x0, y0), (x1, y1) = shape.points
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]


def box(shape: Shape) -> tuple[int, int, int, int]:
    xs, ys = zip(*shape.points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def mask(shape: Shape, size: tuple[int, int]) -> np.ndarray:
    """[H, W] 1 inside; pixels [x0, x1) x [y0, y1) of a rectangle."""
    canvas = np.zeros(size[::-1], np.uint8)
    if len(shape.points) == 3:
        cv2.fillPoly(canvas, [np.array(corners(shape))], 1)
    else:
        x0, y0, x1, y1 = box(shape)
        canvas[y0:y1, x0:x1] = 1
    if shape.hole:
        (hx0, hy0), _, (hx1, hy1), _ = shape.hole
        canvas[hy0:hy1, hx0:hx1] = 0
    return canvas


def label_map(picture: Picture, *, holes: bool = True) -> np.ndarray:
    """[H, W] 0, or 1 + the number of the class."""
    canvas = np.zeros(picture.size[::-1], np.uint8)
    for shape in picture.shapes if holes else [shape._replace(hole=()) for shape in picture.shapes]:
        canvas[mask(shape, picture.size) > 0] = 1 + CLASSES.index(shape.label)
    return canvas


def draw(folder: Path, suffix: str = '.png') -> dict[str, Path]:
    """Write all images, noise with the objects in it, and the one that nobody annotated; return the files by stem."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for number, picture in enumerate((*PICTURES, Picture(UNANNOTATED, '', (96, 80), ()))):
        pixels = np.random.default_rng(number).integers(0, 255, (*picture.size[::-1], 3), dtype=np.uint8)
        files[picture.stem] = folder / f'{picture.stem}{suffix}'
        files[picture.stem].write_bytes(cv2.imencode(suffix, pixels)[1].tobytes())
    return files
