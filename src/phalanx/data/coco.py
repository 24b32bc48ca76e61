"""COCO's JSON of images, annotations and categories, read for the data sets of recipes and for `phalanx new`.

Entries are parsed one by one: a data set of a recipe reports all that cannot be read, `phalanx new` leaves their images out.
Blocks of plain objects are parsed by columns, in a quarter of the time.
"""

import math
from array import array
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from phalanx.data.checks import LARGEST, AnnotationError, parse_flag, parse_numbers, shorten
from phalanx.data.shapes import Box, BoxColumns, bounding_box, corners_of, rotate, runs

Key = int | str  # an id
SPECIAL = frozenset(('attributes', 'caption', 'ignore', 'keypoints', 'segments_info'))  # keys of objects that are not plain


class CocoImage(NamedTuple):
    key: Key
    name: str  # its path, as written; folders are divided by /
    size: tuple[int, int]  # (width, height); (0, 0) if the file does not say


class CocoObject(NamedTuple):
    image: Key
    category: Key
    box: Box  # x0, y0, x1, y1
    corners: list[list[float]]  # of a rotated box (the attribute `rotation` of CVAT and Encord); else empty
    area: float  # as annotated: of the outline, by which COCO's size classes are defined; else NaN
    ignored: bool  # a crowd, or COCO's `ignore`
    has_keypoints: bool


def parse_categories(entries: Iterable[Any], path: Path) -> dict[Key, str]:
    """Name by id of the entries of `categories`, in their order. Ids may begin anywhere and have gaps: COCO's 80 go up to 90.

    Raises AnnotationError.
    """
    names: dict[Key, str] = {}
    used: set[str] = set()
    for number, entry in enumerate(entries):
        key = parse_key(entry, 'id', f'{path}: categories[{number}]')
        name = str(_field(entry, 'name', f'{path}: category {key}')).strip()
        if key in names or name in used:
            raise AnnotationError(f'{path}: category {key}, {name!r}: the id or the name is used twice')
        names[key] = name
        used.add(name)
    return names


def place_of(path: Path, kind: str, number: int, entry: object) -> str:
    """Beginning of a message about an image or annotation, by its id or, without one, its place in the file."""
    key = entry.get('id') if isinstance(entry, dict) else None
    return f'{path}: {kind} {key}' if type(key) in (int, str) else f'{path}: {kind}s[{number}]'


def parse_key(entry: dict[str, Any], name: str, where: str, known: Collection[Key] = ()) -> Key:
    """The id in a field; 7.0 is 7, and a number in quotes is the number if only that is `known`, and the other way round.

    Raises AnnotationError.
    """
    value = _field(entry, name, where)
    key: Key = (
        int(value) if isinstance(value, float) and value.is_integer() else value if isinstance(value, int) else str(value)
    )
    if key in known or not known:
        return key
    other: Key = str(key) if isinstance(key, int) else int(key) if key.isascii() and key.isdigit() and len(key) < 20 else key
    return other if other in known and str(other) == str(key) else key


def parse_image(entry: dict[str, Any], where: str) -> CocoImage:
    """Parse an entry of `images`. Raises AnnotationError."""
    key = parse_key(entry, 'id', where)
    name = entry.get('file_name')
    if name is None and isinstance(entry.get('coco_url'), str):  # of LVIS: the folder and the name
        name = '/'.join(entry['coco_url'].split('/')[-2:])
    name = (name if isinstance(name, str) else str(_field(entry, 'file_name', where))).replace('\\', '/')
    values = [entry.get('height') or 0, entry.get('width') or 0]
    height, width = parse_numbers(values, 2, where, 'height and width')
    if (width == 0) != (height == 0):
        raise AnnotationError(f'{where}: expected height and width, got only one of them')
    return CocoImage(key, name, (int(width), int(height)))


def parse_object(entry: dict[str, Any], images: Collection[Key], categories: dict[Key, str], where: str) -> CocoObject:
    """Parse an entry of `annotations`. Without `bbox`, the box is that of its outline. Raises AnnotationError."""
    _check_object(entry, where)
    if 'caption' in entry:
        raise AnnotationError(f'{where}: is a caption of the image, which no family learns')
    if 'segments_info' in entry:
        raise AnnotationError(f'{where}: is panoptic, with objects in an image; `phalanx data prepare coco` reads them')
    image, category = parse_key(entry, 'image_id', where, images), parse_key(entry, 'category_id', where, categories)
    if image not in images:
        raise AnnotationError(f'{where}: image_id {image} is not the id of an image; fix or remove the annotation')
    if category not in categories:
        known = ', '.join(map(str, list(categories)[:10])) + (' ...' if len(categories) > 10 else '')
        raise AnnotationError(f'{where}: category_id {category} is not the id of a category (they are {known})')
    bbox, outline = entry.get('bbox'), entry.get('segmentation')
    if bbox or not outline:
        values = bbox if type(bbox) is list else _field(entry, 'bbox', where)
        x, y, width, height = parse_numbers(values, 4, f'{where}: bbox', 'x, y, width and height')
        box = (x, y, x + width, y + height)
    else:
        box = _box_of_outline(outline, where)
    # CVAT and Encord turn a box about its centre, clockwise; Encord adds an outline that is not turned, with the same area
    attributes, corners, stated = entry.get('attributes'), list[list[float]](), entry.get('area')
    area = stated if isinstance(stated, (int, float)) and 0 < stated <= LARGEST**2 else math.nan  # a union takes longer
    is_box = math.isclose(area, (box[2] - box[0]) * (box[3] - box[1]), rel_tol=1e-6)
    if isinstance(attributes, dict) and attributes.get('rotation') and (is_box or not outline):
        (degrees,) = parse_numbers(attributes['rotation'], 1, f'{where}: rotation', 'degrees')
        corners = rotate(corners_of(*box), degrees, ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)) if degrees % 360 else []
        box = bounding_box(corners) if corners else box
    return CocoObject(
        image,
        category,
        box,
        corners,
        area,
        any(parse_flag(entry.get(key), f'{where}: {key}') for key in ('iscrowd', 'ignore')),
        bool(entry.get('keypoints')),
    )


def parse_plain_objects(entries: list[Any], images: Mapping[Key, int], labels: Mapping[Key, int]) -> BoxColumns | None:
    """Objects as `parse_object` finds them, with numbers for ids; None if an entry is not plain, such as a faulty one."""
    try:
        keys = [entry['image_id'] for entry in entries], [entry['category_id'] for entry in entries]
        boxes = [entry['bbox'] for entry in entries]
        areas, flags = [entry.get('area') for entry in entries], [entry.get('iscrowd') for entry in entries]
        is_plain = (
            SPECIAL.isdisjoint(chain.from_iterable(entries))
            and {int, str}.issuperset(map(type, chain(*keys)))
            and {list}.issuperset(map(type, boxes))
            and {4}.issuperset(map(len, boxes))
            and {int, float, NoneType}.issuperset(map(type, areas))
            and {int, bool, NoneType}.issuperset(map(type, flags))
        )
        corners = np.fromiter(chain.from_iterable(boxes), np.float64).reshape(-1, 4)
        sizes = np.array(areas, np.float64)  # None becomes NaN
        numbers = [images[key] for key in keys[0]], [labels[key] for key in keys[1]]
    except (KeyError, OverflowError, TypeError, ValueError):
        return None
    if not is_plain or not (abs(corners) <= LARGEST).all():
        return None
    corners[:, 2:] += corners[:, :2]
    sizes[~((sizes > 0) & (sizes <= LARGEST**2))] = math.nan
    arrays = array('d', corners.tobytes()), array('d', sizes.tobytes())
    return BoxColumns(numbers[0], arrays[0], numbers[1], arrays[1], list(map(bool, flags)))


def _box_of_outline(outline: object, where: str) -> Box:
    """Box around polygons or run lengths. Raises AnnotationError."""
    if isinstance(outline, list) and all(isinstance(flat, list) and len(flat) % 2 == 0 for flat in outline):
        flat = [value for polygon in outline for value in polygon]
        values = parse_numbers(flat, max(2, len(flat)), f'{where}: segmentation', 'lists x0, y0, x1, y1, ...')
        return bounding_box(list(zip(values[::2], values[1::2], strict=True)))
    size = outline.get('size') if isinstance(outline, dict) else None
    if not isinstance(outline, dict) or not isinstance(size, list):
        raise AnnotationError(f'{where}: has no `bbox`, and no `segmentation` to take it from')
    height, width = (int(value) for value in parse_numbers(size, 2, f'{where}: segmentation: size', 'height and width'))
    if height < 1 or width < 1:
        raise AnnotationError(f'{where}: segmentation: size: expected a height and width above 0, got {shorten(size)}')
    box = runs(outline.get('counts'), (width, height), f'{where}: segmentation').box(height)
    if box is None:
        raise AnnotationError(f'{where}: its run lengths mark no pixel')
    return box


def _check_object(row: object, where: str) -> None:
    """Raise AnnotationError for an entry without keys."""
    if not isinstance(row, dict):
        raise AnnotationError(f'{where}: expected an object, got {shorten(row)}')


def _field(row: dict[str, Any], key: str, where: str) -> Any:
    """Required value: a number, a text, or a list for `bbox`. Raises AnnotationError."""
    _check_object(row, where)
    value = row.get(key)
    if value is None or type(value) in (dict, bool) or (type(value) is list and key != 'bbox'):
        raise AnnotationError(f'{where} has {"no" if value is None else "an invalid"} `{key}`')
    return value
