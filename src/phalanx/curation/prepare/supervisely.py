"""Annotations of Supervisely: a JSON file `ann/NAME.jpg.json` per image `img/NAME.jpg`."""

import base64
import zlib
from typing import Any

from phalanx.curation.prepare.bitmaps import bitmap_instance, decode_png
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.tree import Tree
from phalanx.data.checks import AnnotationError, check_floats, check_size, get_member, shorten
from phalanx.data.shapes import Shape, bounding_box, polygon

MOST_BITMAP = 2**24  # bytes of a bitmap once decompressed; it is a PNG file


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
    if kind == 'bitmap':
        return _bitmap(label, get_member(entry, 'bitmap', dict, where), size, where)
    points = get_member(entry, 'points', dict, where)
    exterior = get_member(points, 'exterior', list, where)
    if kind == 'rectangle' and len(exterior) == 2:
        return Instance(label, bounding_box(polygon([*exterior, exterior[0]], size, where).points.tolist()))
    if kind != 'polygon':
        raise AnnotationError(f'{where}: is a {kind}; rectangle, polygon and bitmap can be used')
    return Instance(label, bounding_box(polygon(exterior, size, where).points.tolist()), (_with_holes(points, size, where),))


def _with_holes(points: dict[str, Any], size: tuple[int, int], where: str) -> Shape:
    """Polygon that walks to each hole and back; by the even-odd rule the connections cancel out."""
    exterior = points['exterior']
    walk = [*exterior, exterior[0]]
    holes = points.get('interior') or []
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
