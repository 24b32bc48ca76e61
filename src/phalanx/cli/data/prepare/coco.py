"""Instances of COCO: one JSON file with images, categories and annotations (polygons or run lengths)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from phalanx.cli.data.prepare.checks import AnnotationError, check_size, file_below, member, read_json
from phalanx.cli.data.prepare.label_maps import Pair, painted
from phalanx.cli.data.prepare.shapes import Shape, polygon, runs

BACKGROUND = 'background'


def read_coco(file: Path, images: Path) -> tuple[list[Pair], tuple[str, ...], list[str]]:
    """The images that `file` lists, the names of the classes, and what cannot be used.

    Class 0 is the background, the others are the categories by their number. Crowds lie below single objects, and large objects
    below small ones. Raises AnnotationError when the file has not the parts of a COCO file.
    """
    content = read_json(file)
    names, values = _categories(content, file)
    of_image: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for number, entry in enumerate(member(content, 'annotations', list, f'{file}')):
        of_image.setdefault(member(entry, 'image_id', int, f'{file}: annotations[{number}]'), []).append((number, entry))
    pairs: list[Pair] = []
    problems: list[str] = []
    for number, entry in enumerate(member(content, 'images', list, f'{file}')):
        try:
            where = f'{file}: images[{number}]'
            annotations = of_image.pop(member(entry, 'id', int, where), [])
            pairs.append(_pair(entry, annotations, values, file, images, where))
        except AnnotationError as error:
            problems.append(str(error))
    problems += [f'{file}: annotations[{left[0][0]}]: there is no image {image}' for image, left in of_image.items()]
    return pairs, names, problems


def _categories(content: dict[str, Any], file: Path) -> tuple[tuple[str, ...], dict[int, tuple[int, str]]]:
    """The names of the classes, and the class and name of each category."""
    found: dict[int, str] = {}
    for number, entry in enumerate(member(content, 'categories', list, f'{file}')):
        where = f'{file}: categories[{number}]'
        identity, name = member(entry, 'id', int, where), member(entry, 'name', str, where)
        if identity in found or name in (BACKGROUND, *found.values()):
            raise AnnotationError(f'{where}: the category {identity} ({name!r}) is there twice, or is the background')
        found[identity] = name
    by_number = sorted(found.items())
    names = (BACKGROUND, *(name for _, name in by_number))
    return names, {identity: (label, name) for label, (identity, name) in enumerate(by_number, 1)}


def _pair(
    entry: dict[str, Any],
    annotations: list[tuple[int, dict[str, Any]]],
    values: dict[int, tuple[int, str]],
    file: Path,
    images: Path,
    where: str,
) -> Pair:
    name = member(entry, 'file_name', str, where)
    image = file_below(images, images, name, where)
    size = check_size((entry.get('width'), entry.get('height')), image, where)
    shapes: list[tuple[bool, float, Shape, int]] = []
    for number, annotation in annotations:
        category = member(annotation, 'category_id', int, f'{file}: annotations[{number}]')
        if category not in values:
            raise AnnotationError(f'{file}: annotations[{number}]: there is no category {category}')
        value, label = values[category]
        parts = _shapes(annotation, size, f'{file}: annotations[{number}] ({label!r})')
        crowd, area = bool(annotation.get('iscrowd')), sum(part.area for part in parts)
        shapes += [(crowd, area, part, value) for part in parts]
    shapes.sort(key=lambda shape: (not shape[0], -shape[1]))
    stem = str(image.relative_to(images).with_suffix(''))
    return Pair(image, stem, partial(painted, [(shape, value) for _, _, shape, value in shapes], size))


def _shapes(annotation: dict[str, Any], size: tuple[int, int], where: str) -> list[Shape]:
    """The polygons of an object, or its run lengths."""
    segmentation = member(annotation, 'segmentation', (list, dict), where)
    if not segmentation:
        raise AnnotationError(f'{where}: has no outline')
    if isinstance(segmentation, list):
        if not all(isinstance(flat, list) and len(flat) % 2 == 0 for flat in segmentation):
            raise AnnotationError(f'{where}: expected lists x0, y0, x1, y1, ... of its polygons')
        return [polygon([list(pair) for pair in zip(flat[::2], flat[1::2], strict=True)], size, where) for flat in segmentation]
    said = member(segmentation, 'size', list, where)  # height, width
    if said != [size[1], size[0]]:
        raise AnnotationError(f'{where}: its run lengths are for a size (height, width) of {said}, the image is {size[::-1]}')
    return [runs(segmentation.get('counts'), size, where)]
