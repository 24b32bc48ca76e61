"""Annotations of Supervisely: a JSON file `ann/NAME.jpg.json` per image `img/NAME.jpg`."""

import base64
import math
import zlib
from typing import Any

from phalanx.curation.prepare.bitmaps import bitmap_instance, decode_png
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.tree import Tree
from phalanx.data.checks import AnnotationError, check_floats, check_size, get_member, parse_numbers, shorten
from phalanx.data.shapes import Polygon, bounding_box, corners_of, polygon, rotate

MOST_BITMAP = 2**24  # bytes of a bitmap once decompressed; it is a PNG file
SHAPES = 'rectangle, oriented_bbox, polygon, multipolygon, bitmap, alpha_mask'  # those with an area


def find_supervisely(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of JSON files with `objects` and `size`; meta.json names the classes."""
    for path, content in tree.jsons.items():
        if path.name == 'meta.json' and isinstance(content, dict) and isinstance(content.get('classes'), list):
            found.class_names = tuple(str(one.get('title')) for one in content['classes'] if isinstance(one, dict))
        if path.parent.name != 'ann' and not (isinstance(content, dict) and {'objects', 'size'} <= content.keys()):
            continue
        with found.left_out.catch():
            said = get_member(content, 'size', dict, f'{path}')
            image = tree.image(path.name.removesuffix('.json'), path, f'{path}')
            with found.dropping(image):
                size = check_size((said.get('width'), said.get('height')), image, f'{path}')
                _count_tags(content, found)
                listed = enumerate(get_member(content, 'objects', list, f'{path}'))
                instances = [_instance(one, size, f'{path}: objects[{n}]') for n, one in listed]
                found.samples.append(Sample(image, tree.split_of(path), tuple(instances)))


def _count_tags(content: dict[str, Any], found: AnnotationSet) -> None:
    objects = content['objects'] if isinstance(content.get('objects'), list) else []
    for one in (content, *objects):
        tags = one.get('tags') if isinstance(one, dict) else None
        found.unused['tags'] += len(tags) if isinstance(tags, list) else 0


def _instance(entry: Any, size: tuple[int, int], where: str) -> Instance:
    label = get_member(entry, 'classTitle', str, where)
    where, kind = f'{where} ({label!r})', entry.get('geometryType')
    match kind:
        case 'bitmap' | 'alpha_mask':
            return _bitmap(label, get_member(entry, 'bitmap', dict, where), size, where)
        case 'rectangle':
            return Instance(label, bounding_box(_two_corners(get_member(entry, 'points', dict, where).get('exterior'), where)))
        case 'oriented_bbox':
            (x0, y0), (x1, y1) = _two_corners(entry.get('points'), where)
            degrees = math.degrees(parse_numbers(entry.get('angle'), 1, f'{where}: angle', 'radians')[0])  # clockwise
            corners = rotate(corners_of(x0, y0, x1, y1), degrees, ((x0 + x1) / 2, (y0 + y1) / 2))
            return Instance(label, bounding_box(corners), (), corners)
        case 'polygon' | 'multipolygon':
            parts = entry.get('parts') if kind == 'multipolygon' else [entry.get('points')]
            if not isinstance(parts, list) or not parts:
                raise AnnotationError(f'{where}: expected its parts, got {shorten(parts)}')
            shapes = tuple(_with_holes(part, size, where) for part in parts)
            return Instance(label, bounding_box([point for shape in shapes for point in shape.points.tolist()]), shapes)
    raise AnnotationError(f'{where}: is a {kind}, so the image is not used; {SHAPES} can be used')


def _two_corners(points: object, where: str) -> list[list[float]]:
    """Opposite corners of a rectangle. Raises AnnotationError."""
    if not isinstance(points, list) or len(points) != 2:
        raise AnnotationError(f'{where}: expected two corners, got {shorten(points)}')
    return [check_floats(corner, 2, where) for corner in points]


def _with_holes(part: Any, size: tuple[int, int], where: str) -> Polygon:
    """Polygon that walks to each hole and back; by the even-odd rule the connections cancel out."""
    exterior = get_member(part, 'exterior', list, where)
    walk = [*exterior, *exterior[:1]]
    holes = part.get('interior') or []
    if not isinstance(holes, list) or not all(isinstance(hole, list) and hole for hole in holes):
        raise AnnotationError(f'{where}: interior: expected a list of holes with points, got {shorten(holes)}')
    for hole in holes:
        walk += [*hole, hole[0], exterior[0]]
    return polygon(walk, size, where)


def _bitmap(label: str, bitmap: dict[str, Any], size: tuple[int, int], where: str) -> Instance:
    origin = check_floats(get_member(bitmap, 'origin', list, where)[:2], 2, f'{where}: origin')
    text = get_member(bitmap, 'data', str, where)
    try:
        packed = base64.b64decode(text, validate=True)
        data = zlib.decompressobj().decompress(packed, MOST_BITMAP)
    except (ValueError, zlib.error) as error:
        raise AnnotationError(f'{where}: its bitmap cannot be decoded: {error}') from None
    return bitmap_instance(label, decode_png(data, size, where), int(origin[0]), int(origin[1]), size, where)
