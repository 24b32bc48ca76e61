"""Polygons of labelme: a JSON file for each image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from phalanx.cli.data.prepare.checks import AnnotationError, check_size, file_below, member, read_json
from phalanx.cli.data.prepare.label_maps import VOID, Pair, painted
from phalanx.cli.data.prepare.shapes import Polygon, polygon

BACKGROUND = 'background'
MEANING = {BACKGROUND: 0, '_background_': 0, '__ignore__': VOID}  # labels that are no classes; labelme's own among them
CIRCLE = 64  # corners of a circle


@dataclass(frozen=True)
class Outlined:
    """A shape of an image."""

    label: str
    outline: Polygon
    where: str  # it stands: file, number, label


@dataclass(frozen=True)
class LabelmeFile:
    """What one JSON file says of its image."""

    path: Path
    image: Path
    size: tuple[int, int]
    shapes: list[Outlined]


def read_labelme(folder: Path, classes: Sequence[str] | None) -> tuple[list[Pair], tuple[str, ...], list[str]]:
    """The images of all JSON files below `folder`, the names of the classes, and what cannot be used.

    Class 0 is the background; the others are `classes`, or all labels that occur, in alphabetical order. Later shapes lie over
    earlier ones: a hole is a shape labelled background after the shape that it is in.
    """
    files, problems = read_files(folder)
    labels = sorted({shape.label for file in files for shape in file.shapes})
    names = (BACKGROUND, *(name for name in (labels if classes is None else classes) if name not in MEANING))
    values = {name: number for number, name in enumerate(names)} | MEANING
    pairs = []
    for file in files:
        unknown = [shape for shape in file.shapes if shape.label not in values]
        problems += [f'{shape.where}: is no class{_hint(shape.label, names)}' for shape in unknown]
        if not unknown:
            stem = str(file.path.relative_to(folder).with_suffix(''))
            shapes = [(shape.outline, values[shape.label]) for shape in file.shapes]
            pairs.append(Pair(file.image, stem, partial(painted, shapes, file.size)))
    return pairs, names, problems


def read_files(folder: Path) -> tuple[list[LabelmeFile], list[str]]:
    """All JSON files below `folder`, and what is wrong with those that cannot be used."""
    files, problems = [], []
    for path in sorted(folder.rglob('*.json')):
        try:
            files.append(_read(path, folder))
        except AnnotationError as error:
            problems.append(str(error))
    return files, problems


def _read(path: Path, folder: Path) -> LabelmeFile:
    content = read_json(path)
    image = file_below(folder, path.parent, member(content, 'imagePath', str, f'{path}'), f'{path}: imagePath')
    size = check_size((content.get('imageWidth'), content.get('imageHeight')), image, f'{path}')
    shapes = []
    for number, shape in enumerate(member(content, 'shapes', list, f'{path}')):
        label = member(shape, 'label', str, f'{path}: shapes[{number}]')
        where = f'{path}: shapes[{number}] ({label!r})'
        shapes.append(Outlined(label, _outline(shape, size, where), where))
    return LabelmeFile(path, image, size, shapes)


def _outline(shape: dict[str, Any], size: tuple[int, int], where: str) -> Polygon:
    kind, points = shape.get('shape_type', 'polygon'), member(shape, 'points', list, where)
    if kind == 'polygon':
        return polygon(points, size, where)
    if kind not in ('rectangle', 'circle'):
        raise AnnotationError(f'{where}: is a {kind}; only polygon, rectangle and circle have an area that can be filled')
    if len(points) != 2:
        raise AnnotationError(f'{where}: a {kind} needs 2 points, got {len(points)}')
    (x0, y0), (x1, y1) = polygon([*points, *points[:1]], size, where).points[:2].tolist()
    if kind == 'rectangle':
        return polygon([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], size, where)
    radius, turn = math.dist((x0, y0), (x1, y1)), 2 * math.pi / CIRCLE  # the first point is the centre
    return polygon([[x0 + radius * math.cos(n * turn), y0 + radius * math.sin(n * turn)] for n in range(CIRCLE)], size, where)


def _hint(label: str, names: Sequence[str]) -> str:
    near = get_close_matches(label, names, n=1)
    return f'; did you mean {near[0]!r}?' if near else f' (they are {", ".join(names[:20])})'
