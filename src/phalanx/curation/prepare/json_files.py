"""Annotations of Datumaro, CreateML, and the VGG Image Annotator (VIA), in JSON."""

import math
from typing import Any

from phalanx.curation.prepare.bitmaps import runs_instance
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.tree import Tree
from phalanx.data.checks import AnnotationError, check_floats, check_size, get_member, parse_json, parse_numbers, shorten
from phalanx.data.shapes import bounding_box, corners_of, ellipse, polygon, rotate, sized_runs

NAMED = ('class', 'label', 'type', 'name', 'category', 'object')  # attributes that VIA's users call the class by


def find_datumaro(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of Datumaro's own files: `categories` and `items`, one file per split."""
    for path, content in tree.jsons.items():
        if not isinstance(content, dict) or not {'categories', 'items'} <= content.keys():
            continue
        with found.left_out.catch():
            owner = get_member(get_member(content, 'categories', dict, f'{path}'), 'label', dict, f'{path}: categories')
            names = [
                str(get_member(one, 'name', str, f'{path}: a label')) for one in get_member(owner, 'labels', list, f'{path}')
            ]
            found.class_names = tuple(dict.fromkeys([*found.class_names, *names]))
            for item in get_member(content, 'items', list, f'{path}'):
                with found.left_out.catch():
                    where = f'{path}: item {item.get("id") if isinstance(item, dict) else item!r}'
                    name = get_member(get_member(item, 'image', dict, where), 'path', str, where)
                    image = tree.image(f'{path.stem}/{name}', path, where)
                    with found.dropping(image):
                        if size := item['image'].get('size'):
                            height, width = map(int, check_floats(size, 2, f'{where}: size'))
                            check_size((width, height), image, where)
                        annotations = get_member(item, 'annotations', list, where)
                        instances = [_datumaro_instance(one, names, tree.size(image), where) for one in annotations]
                        found.samples.append(Sample(image, tree.split_of(path), tuple(filter(None, instances))))
                        for one in annotations:
                            found.count_attributes(one.get('attributes'))


def _datumaro_instance(annotation: Any, names: list[str], size: tuple[int, int], where: str) -> Instance | None:
    """Object of an annotation; None for labels and captions of the whole image. Raises AnnotationError."""
    kind = get_member(annotation, 'type', str, where)
    if kind in ('label', 'caption'):
        return None
    where = f'{where}: {kind} {annotation.get("id", "")}'
    number = get_member(annotation, 'label_id', int, where)
    if not 0 <= number < len(names):
        raise AnnotationError(f'{where}: label_id {number} is not one of 0 to {len(names) - 1}')
    label = names[number]
    attributes = annotation.get('attributes')
    ignored = isinstance(attributes, dict) and bool(attributes.get('is_crowd') or attributes.get('difficult'))
    match kind:
        case 'bbox':
            x, y, width, height = check_floats(annotation.get('bbox'), 4, f'{where}: bbox')
            given = attributes.get('rotation') if isinstance(attributes, dict) else None  # of CVAT
            degrees = parse_numbers(given or 0, 1, f'{where}: rotation', 'degrees')[0]
            if not degrees % 360:
                return Instance(label, (x, y, x + width, y + height), ignored=ignored)
            x, y = x + width / 2, y + height / 2
        case 'rotated_bbox':
            x, y, width, height, degrees = check_floats(annotation.get('bbox'), 5, f'{where}: bbox')
        case 'polygon':
            points = _pairs(annotation.get('points'), where)
            return Instance(label, bounding_box(points), (polygon(points, size, where),), ignored=ignored)
        case 'ellipse':
            x0, y0, x1, y1 = check_floats(annotation.get('points'), 4, where)
            points = ellipse((x0 + x1) / 2, (y0 + y1) / 2, (x1 - x0) / 2, (y1 - y0) / 2)
            return Instance(label, (x0, y0, x1, y1), (polygon(points, size, where),), ignored=ignored)
        case 'mask':
            lengths = sized_runs(get_member(annotation, 'rle', dict, where), size, where)
            return runs_instance(label, lengths, size, where)._replace(ignored=ignored)
        case _:
            raise AnnotationError(f'{where}: has no area, so the image is not used')
    corners = rotate(corners_of(x - width / 2, y - height / 2, x + width / 2, y + height / 2), degrees, (x, y))
    return Instance(label, bounding_box(corners), (), corners, ignored=ignored)


def _pairs(flat: object, where: str) -> list[list[float]]:
    values = check_floats(flat, len(flat) if isinstance(flat, list) else 0, where)
    if len(values) % 2:
        raise AnnotationError(f'{where}: has an odd number of coordinates')
    return [[x, y] for x, y in zip(values[::2], values[1::2], strict=True)]


def find_createml(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of lists of `image` and `annotations` with a label and the middle and size of a box in pixels."""
    for path, content in tree.jsons.items():
        entries = content if isinstance(content, list) else []
        if not any(isinstance(one, dict) and _coordinates(one) for one in entries):
            continue
        for number, entry in enumerate(entries):
            where = f'{path}: [{number}]'
            with found.left_out.catch():
                name = entry.get('image') or entry.get('imagefilename') if isinstance(entry, dict) else None
                image = tree.image(name if isinstance(name, str) else '', path, where)
                with found.dropping(image):
                    listed = enumerate(get_member(entry, 'annotations', list, where))
                    instances = [_createml_instance(one, f'{where}: annotations[{place}]') for place, one in listed]
                    found.samples.append(Sample(image, tree.split_of(path), tuple(instances)))


def _createml_instance(annotation: Any, where: str) -> Instance:
    box = get_member(annotation, 'coordinates', dict, where)
    x, y, width, height = check_floats([box.get(key) for key in ('x', 'y', 'width', 'height')], 4, where)
    corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return Instance(get_member(annotation, 'label', str, where), corners)


def _coordinates(entry: dict[str, Any]) -> bool:
    annotations = entry.get('annotations')
    return isinstance(annotations, list) and any(isinstance(one, dict) and 'coordinates' in one for one in annotations)


def find_via(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of VIA 2: the JSON of a project or of its annotations, or CSV files of regions."""
    for path, content in tree.jsons.items():
        entries = content.get('_via_img_metadata', content) if isinstance(content, dict) else None
        if isinstance(content, dict) and {'project', 'file', 'metadata', 'view'} <= content.keys():
            found.left_out.append(f'{path}: is a project of VIA 3; export it as COCO')
        if not isinstance(entries, dict) or not any(
            isinstance(entry, dict) and {'filename', 'regions'} <= entry.keys() for entry in entries.values()
        ):
            continue
        for key, entry in entries.items():
            where = f'{path}: {key}'
            with found.left_out.catch():
                image = tree.image(get_member(entry, 'filename', str, where), path, where)
                with found.dropping(image):
                    regions = get_member(entry, 'regions', (dict, list), where)
                    listed = [*regions.values()] if isinstance(regions, dict) else regions
                    instances = [via_instance(one, tree.size(image), f'{where}: region {n}') for n, one in enumerate(listed)]
                    if instances:
                        found.samples.append(Sample(image, tree.split_of(path), tuple(instances)))
    # VIA lists all files of a project, those without regions, too: whether somebody looked at them is not said.


def via_instance(region: Any, size: tuple[int, int], where: str) -> Instance:
    """Object of a region with `shape_attributes` and `region_attributes`. Raises AnnotationError."""
    shape = get_member(region, 'shape_attributes', dict, where)
    label, kind = _via_label(get_member(region, 'region_attributes', dict, where), where), shape.get('name')

    def numbers(*keys: str) -> list[float]:
        return check_floats([shape.get(key) for key in keys], len(keys), f'{where} ({label!r})')

    if kind == 'rect':
        x, y, width, height = numbers('x', 'y', 'width', 'height')
        return Instance(label, (x, y, x + width, y + height))
    if kind in ('circle', 'ellipse'):
        x, y = numbers('cx', 'cy')
        rx, ry = numbers('rx', 'ry') if kind == 'ellipse' else numbers('r', 'r')
        (radians,) = check_floats([shape.get('theta') or 0.0], 1, where)
        points = ellipse(x, y, rx, ry, math.degrees(radians))
    elif kind == 'polygon':
        xs, ys = (get_member(shape, key, list, where) for key in ('all_points_x', 'all_points_y'))
        if len(xs) != len(ys):
            raise AnnotationError(f'{where}: has {len(xs)} x and {len(ys)} y')
        points = [check_floats([x, y], 2, where) for x, y in zip(xs, ys, strict=True)]
    else:
        raise AnnotationError(f'{where}: {kind} has no area, so the image is not used; rect, circle, ellipse, polygon can be')
    return Instance(label, bounding_box(points), (polygon(points, size, where),))


def _via_label(attributes: dict[str, Any], where: str) -> str:
    """The class among a region's attributes: the only one, or the one called `class`, `label` ...; '' without attributes."""
    if not attributes:
        return ''
    named = [key for known in NAMED for key in attributes if key.strip().lower() == known]
    if not named and len(attributes) > 1:
        raise AnnotationError(f'{where}: which of {", ".join(attributes)} is the class? Rename it to `class`')
    value = attributes[named[0] if named else next(iter(attributes))]
    if isinstance(value, dict):  # of checkboxes
        chosen = [key for key, is_set in value.items() if is_set]
        if len(chosen) != 1:
            raise AnnotationError(f'{where}: has {len(chosen)} classes; one can be used')
        return str(chosen[0])
    if not isinstance(value, str) or not value.strip():
        raise AnnotationError(f'{where}: has no class: {shorten(attributes)}')
    return value.strip()


def parse_via_cells(shape: str, attributes: str, where: str) -> dict[str, Any]:
    """The region of a line of VIA's CSV. Raises AnnotationError."""
    return {'shape_attributes': parse_json(shape, where), 'region_attributes': parse_json(attributes, where)}
