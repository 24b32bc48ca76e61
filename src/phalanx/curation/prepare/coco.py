"""COCO instances: a JSON file with images, categories and annotations (boxes, polygons or run lengths)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.curation.prepare.bitmaps import bitmap_instance
from phalanx.curation.prepare.checks import (
    AnnotationError,
    check_floats,
    check_size,
    find_file,
    get_member,
    open_image,
    parse_number,
    read_json,
)
from phalanx.curation.prepare.label_maps import BACKGROUND
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample, SplitName, bounding_box
from phalanx.curation.prepare.shapes import Polygon, Shape, polygon, sized_runs
from phalanx.curation.prepare.tree import Tree

Key = int | str | float  # ids as exporters write them


def read_coco(file: Path, images: Path, *, outlined: bool) -> AnnotationSet:
    """Read `file`, whose images lie below `images`; `outlined`: objects must have outlines, of which label maps are painted.

    Crowds lie below single objects, and large objects below small ones. Raises AnnotationError if a part of a COCO file is
    missing.
    """
    found = AnnotationSet(boxes_first=True)
    read_content(read_json(file), file, lambda name, _, where: find_file(images, images, name, where), found, outlined=outlined)
    return found


def find_coco(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of all JSON files with `images`, `annotations` and `categories`."""
    found.boxes_first = True
    for path, content in tree.jsons.items():
        if isinstance(content, dict) and isinstance(content.get('image'), dict) and 'annotations' in content:
            found.left_out.append(f'{path}: masks without classes, as of Segment Anything, train no family')
        elif isinstance(content, dict) and isinstance(content.get('annotations'), list) and 'images' in content:
            if not content['annotations']:  # as files of images for a test: nobody annotated these
                found.notes.append(f'{path}: lists {len(content["images"])} images and no annotation: not used')
                continue
            with found.left_out.catch():
                read_content(content, path, tree.image, found, split=tree.split_of(path))


def read_content(
    content: dict[str, Any],
    file: Path,
    image_of: Callable[[str, Path, str], Path],
    found: AnnotationSet,
    *,
    split: SplitName = '',
    outlined: bool = False,
) -> None:
    """Add the samples of a COCO file to `found`; `outlined`: objects must have outlines. Raises AnnotationError."""
    labels, notes, first = _categories(content, file, outlined), list[str](), len(found.samples)
    found.class_names = tuple(dict.fromkeys([*found.class_names, *labels.values()]))
    of_image: dict[Key, list[tuple[int, dict[str, Any]]]] = {}
    for number, entry in enumerate(get_member(content, 'annotations', list, f'{file}')):
        image_id = get_member(entry, 'image_id', (int, str, float), f'{file}: annotations[{number}]')
        of_image.setdefault(image_id, []).append((number, entry))
    for number, entry in enumerate(get_member(content, 'images', list, f'{file}')):
        with found.left_out.catch():
            where = f'{file}: images[{number}]'
            annotations = of_image.pop(get_member(entry, 'id', (int, str, float), where), [])
            image = image_of(get_member(entry, 'file_name', str, where), file, where)
            with found.dropping(image):
                size = check_size((entry.get('width') or None, entry.get('height') or None), image, where)
                instances = []
                for place, one in annotations:
                    at = f'{file}: annotations[{place}]'
                    if 'segments_info' in one:
                        instances += _panoptic(one, file, size, labels, at)
                    else:
                        instances.append(_instance(one, size, labels, at, outlined, notes))
                instances.sort(key=lambda instance: (not instance.ignored, -sum(shape.area for shape in instance.outline)))
                found.samples.append(Sample(image, split, tuple(instances)))
    if notes:
        found.notes.append(f'outlines that cannot be used, of boxes that can: {len(notes)}, such as {notes[0]}')
    found.left_out += [f'{file}: annotations[{left[0][0]}]: there is no image {image}' for image, left in of_image.items()]
    if of_image:  # objects of unknown images: an image that seems to show nothing may be theirs
        bare = [sample for sample in found.samples[first:] if not sample.instances]
        found.samples[first:] = [sample for sample in found.samples[first:] if sample.instances]
        found.left_out += [
            f'{file}: {sample.image}: has no object, but objects of unknown images may be its' for sample in bare
        ]


def _categories(content: dict[str, Any], file: Path, outlined: bool) -> dict[Key, str]:
    """Category names by id, sorted; `outlined`: none may be called like the background. Raises AnnotationError."""
    found: dict[Key, str] = {}
    for number, entry in enumerate(get_member(content, 'categories', list, f'{file}')):
        where = f'{file}: categories[{number}]'
        identity = get_member(entry, 'id', (int, str, float), where)
        name = str(get_member(entry, 'name', (str, int, float), where)).strip()
        if identity in found or name in found.values() or (outlined and name == BACKGROUND):
            raise AnnotationError(f'{where}: the category {identity} ({name!r}) occurs twice, or is the background')
        found[identity] = name
    return dict(sorted(found.items(), key=lambda item: (isinstance(item[0], str), item[0])))


def _bbox(values: object, where: str) -> list[float]:
    """Numbers of a box, which some tools write as strings. Raises AnnotationError."""
    if isinstance(values, list) and len(values) == 4 and all(isinstance(value, str) for value in values):
        return [parse_number(value, where) for value in values]
    return check_floats(values, 4, where)


def _instance(
    annotation: dict[str, Any], size: tuple[int, int], labels: dict[Key, str], where: str, outlined: bool, notes: list[str]
) -> Instance:
    """Object of an annotation. An outline that cannot be used becomes a note if there is a box and `outlined` is False."""
    if 'caption' in annotation:
        raise AnnotationError(f'{where}: is a caption of the image, which no family learns')
    category = get_member(annotation, 'category_id', (int, str, float), where)
    if category not in labels:
        raise AnnotationError(f'{where}: there is no category {category}')
    label = labels[category]
    try:
        shapes = _shapes(annotation, size, f'{where} ({label!r})') if outlined or annotation.get('segmentation') else []
    except AnnotationError as error:
        if outlined or 'bbox' not in annotation:
            raise
        notes.append(str(error))
        shapes = []
    if 'bbox' in annotation:
        x, y, width, height = _bbox(annotation['bbox'], f'{where}: bbox')
        box = (x, y, x + width, y + height)
    else:
        corners = [point for shape in shapes if isinstance(shape, Polygon) for point in shape.points.tolist()]
        if not corners and not outlined:
            raise AnnotationError(f'{where} ({label!r}): has no bbox')
        box = bounding_box(corners or [(0, 0), size])
    return Instance(label, box, tuple(shapes), ignored=bool(annotation.get('iscrowd') or annotation.get('ignore')))


def _panoptic(
    annotation: dict[str, Any], file: Path, size: tuple[int, int], labels: dict[Key, str], where: str
) -> list[Instance]:
    """Objects of a panoptic image, whose pixels have the number red + 256 green + 65536 blue. Raises AnnotationError."""
    name = get_member(annotation, 'file_name', str, where)
    places = (file.parent / file.stem / name, file.parent / name, file.parent.parent / file.stem / name)
    picture = next((place for place in places if place.is_file()), None)
    if picture is None:
        raise AnnotationError(f'{where}: there is no {places[0]}, the segments of its image')
    with open_image(picture) as opened:
        numbers = np.array(opened.convert('RGB'), np.int64) @ (1, 1 << 8, 1 << 16)
    if numbers.shape != size[::-1]:
        raise AnnotationError(f'{where}: {picture} has {numbers.shape[::-1]} pixels, its image {size}')
    instances = []
    for number, segment in enumerate(get_member(annotation, 'segments_info', list, where)):
        at = f'{where}: segments_info[{number}]'
        category = get_member(segment, 'category_id', (int, str, float), at)
        if category not in labels:
            raise AnnotationError(f'{at}: there is no category {category}')
        mask = numbers == get_member(segment, 'id', int, at)
        instances.append(replace(bitmap_instance(labels[category], mask, 0, 0, size, at), ignored=bool(segment.get('iscrowd'))))
    return instances


def _shapes(annotation: dict[str, Any], size: tuple[int, int], where: str) -> list[Shape]:
    """Polygons of an object, or its run lengths. Raises AnnotationError."""
    segmentation = get_member(annotation, 'segmentation', (list, dict), where)
    if not segmentation:
        raise AnnotationError(f'{where}: has no outline')
    if isinstance(segmentation, list):
        if not all(isinstance(flat, list) and len(flat) % 2 == 0 for flat in segmentation):
            raise AnnotationError(f'{where}: expected lists x0, y0, x1, y1, ... of its polygons')
        return [polygon([list(pair) for pair in zip(flat[::2], flat[1::2], strict=True)], size, where) for flat in segmentation]
    return [sized_runs(segmentation, size, where)]
