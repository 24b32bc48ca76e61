"""Annotations of LabelMe: a JSON file per image."""

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from phalanx.curation.prepare.bitmaps import bitmap_instance, decode_png
from phalanx.curation.prepare.label_maps import BACKGROUND, MEANING
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.tree import Tree
from phalanx.data.checks import AnnotationError, check_size, find_file, get_member, read_json
from phalanx.data.shapes import Polygon, bounding_box, corners_of, ellipse, polygon


def read_labelme(folder: Path, classes: Sequence[str] | None) -> AnnotationSet:
    """Read all JSON files below `folder`, for label maps.

    Its classes are `classes`, or all labels that occur, in alphabetical order. Later shapes lie over earlier ones: a hole is a
    shape labelled background after the shape that it is in.
    """
    files: list[tuple[Path, Sample]] = []
    found = AnnotationSet()

    def image_of(name: str, beside: Path, where: str) -> Path:
        return find_file(folder, beside.parent, name, where)

    for path in sorted(folder.rglob('*.json')):
        with found.left_out.catch():
            content = read_json(path)
            image = _image(content, path, image_of)
            with found.dropping(image):
                files.append((path, _sample(content, image, path)))
    labels = sorted({instance.label for _, sample in files for instance in sample.instances})
    names = (BACKGROUND, *(name for name in (labels if classes is None else classes) if name not in MEANING))
    for path, sample in files:
        unknown = [(n, one.label) for n, one in enumerate(sample.instances) if one.label not in (*names, *MEANING)]
        found.left_out += [f'{path}: shapes[{n}] ({label!r}): is not a class{_hint(label, names)}' for n, label in unknown]
        found.samples.append(sample)
        found.dropped |= {sample.image} if unknown else set()
    found.samples = [sample for sample in found.samples if sample.image not in found.dropped]
    return replace(found, class_names=names[1:])


def find_labelme(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of all JSON files with `shapes` or `imagePath`."""
    for path, content in tree.jsons.items():
        if isinstance(content, dict) and not {'shapes', 'imagePath'}.isdisjoint(content):
            with found.left_out.catch():
                image = _image(content, path, tree.image)
                with found.dropping(image):
                    _count_unused(content, found)
                    found.samples.append(replace(_sample(content, image, path), split=tree.split_of(path)))


def _count_unused(content: dict[str, Any], found: AnnotationSet) -> None:
    """Count flags that are set, and groups of shapes."""
    shapes = content['shapes'] if isinstance(content.get('shapes'), list) else []
    for one in (content, *shapes):
        flags = one.get('flags') if isinstance(one, dict) else None
        found.unused['flags'] += sum(is_set is True for is_set in flags.values()) if isinstance(flags, dict) else 0
        is_grouped = isinstance(one, dict) and one.get('group_id') is not None
        found.unused['group_id of shapes, each of which is an object'] += is_grouped


def _image(content: dict[str, Any], path: Path, image_of: Callable[[str, Path, str], Path]) -> Path:
    try:
        return image_of(get_member(content, 'imagePath', str, f'{path}'), path, f'{path}: imagePath')
    except AnnotationError as error:
        cure = '; it is in the file itself (imageData): `labelme_export_json` unpacks it' if content.get('imageData') else ''
        raise AnnotationError(f'{error}{cure}') from None


def _sample(content: dict[str, Any], image: Path, path: Path) -> Sample:
    size = check_size((content.get('imageWidth'), content.get('imageHeight')), image, f'{path}')
    instances = []
    for number, shape in enumerate(get_member(content, 'shapes', list, f'{path}')):
        label = get_member(shape, 'label', str, f'{path}: shapes[{number}]')
        instances.append(_instance(shape, label, size, f'{path}: shapes[{number}] ({label!r})'))
    return Sample(image, instances=tuple(instances))


def _instance(shape: dict[str, Any], label: str, size: tuple[int, int], where: str) -> Instance:
    kind, points = shape.get('shape_type', 'polygon'), get_member(shape, 'points', list, where)
    text = get_member(shape, 'description', str, where) if shape.get('description') else None
    if kind == 'mask':
        (left, top), _ = polygon([*points, *points[:1]], size, where).points[:2].tolist()
        packed = get_member(shape, 'mask', str, where)
        try:
            data = base64.b64decode(packed, validate=True)
        except ValueError as error:
            raise AnnotationError(f'{where}: its mask cannot be decoded: {error}') from None
        return bitmap_instance(label, decode_png(data, size, where), int(left), int(top), size, where, text)
    outline = _outline(kind, points, size, where)
    return Instance(label, bounding_box(outline.points.tolist()), () if kind == 'rectangle' else (outline,), text=text)


def _outline(kind: str, points: list[Any], size: tuple[int, int], where: str) -> Polygon:
    if kind in ('polygon', 'rotation', 'oriented_rectangle'):  # the latter two: four corners (X-AnyLabeling, labelme 6)
        return polygon(points, size, where)
    if kind not in ('rectangle', 'circle'):
        known = 'polygon, rectangle, rotation, circle and mask'
        raise AnnotationError(f'{where}: is a {kind}, which has no area, so the image is not used; {known} can be used')
    if kind == 'rectangle' and len(points) == 4:  # X-AnyLabeling writes all corners
        return polygon(points, size, where)
    if len(points) != 2:
        raise AnnotationError(f'{where}: a {kind} needs 2 points, got {len(points)}')
    (x0, y0), (x1, y1) = polygon([*points, *points[:1]], size, where).points[:2].tolist()
    if kind == 'rectangle':
        return polygon(corners_of(x0, y0, x1, y1), size, where)
    radius = math.dist((x0, y0), (x1, y1))  # the first point is the centre
    return polygon(ellipse(x0, y0, radius, radius), size, where)


def _hint(label: str, names: Sequence[str]) -> str:
    near = get_close_matches(label, names, n=1)
    return f'; did you mean {near[0]!r}?' if near else f' (they are {", ".join(names[:20])})'
