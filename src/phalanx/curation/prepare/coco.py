"""COCO instances: a JSON file with images, categories and annotations (boxes, polygons or run lengths)."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.curation.prepare.bitmaps import bitmap_instance
from phalanx.curation.prepare.label_maps import BACKGROUND
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample, SplitName, join
from phalanx.curation.prepare.splits import settle_splits
from phalanx.curation.prepare.tree import Tree, split_in, stated_split
from phalanx.data.checks import AnnotationError, check_size, find_file, get_member, is_file, open_image, read_json
from phalanx.data.coco import Key, parse_categories, parse_image, parse_key, parse_object, place_of
from phalanx.data.coco_file import check_parts
from phalanx.data.shapes import Shape, polygon, sized_runs

OUTLINES = 'outlines that cannot be used, of boxes that can'
CROWDS = 'crowds, ignored in detection (supervision writes single objects with holes as crowds; set iscrowd to 0 for these)'


def read_coco(files: Sequence[Path], images: Path, *, outlined: bool) -> AnnotationSet:
    """Read `files`, whose images lie below `images`; `outlined`: objects must have outlines, of which label maps are painted.

    Several files are those of splits, if they are named so, or of classes. Crowds lie below single objects, and large objects
    below small ones. Raises AnnotationError if a part of a COCO file is missing.
    """
    found = AnnotationSet(boxes_first=True)

    def image_of(name: str, beside: Path, where: str) -> Path:
        return find_file(images, images, name, where)

    for file in files:
        split = split_in((file.name,)) if len(files) > 1 else ''
        read_content(read_json(file), file, image_of, found, split=split, outlined=outlined)
    of_image = found.by_image()
    splits, notes = settle_splits({same[0].image: {one.split for one in same} for same in of_image})
    joined = [join(same, f'{same[0].image}') for same in of_image]
    found.samples = [replace(sample, split=split) for sample in joined for split in splits[sample.image]]
    found.notes += notes
    return found


def find_coco(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of all JSON files with `images`, `annotations` and `categories`."""
    found.boxes_first = True
    for path, content in tree.jsons.items():
        if (
            isinstance(content, dict)
            and isinstance(content.get('image'), dict)
            and {'annotations', 'dataset'} & {*content} == {'annotations'}
        ):
            found.left_out.append(f'{path}: masks without classes, as of Segment Anything, train no family')
        elif isinstance(content, dict) and isinstance(content.get('annotations'), list) and 'images' in content:
            if not content['annotations']:  # as files of images for a test: nobody annotated these
                found.notes.append(f'{path}: lists {len(content["images"])} images and no annotation: not used')
                continue
            with found.left_out.catch():
                read_content(content, path, tree.image, found, split=tree.split_of(path))


def read_content(
    content: object,
    file: Path,
    image_of: Callable[[str, Path, str], Path],
    found: AnnotationSet,
    *,
    split: SplitName = '',
    outlined: bool = False,
) -> None:
    """Add the samples of a COCO file to `found`; `outlined`: objects must have outlines. Raises AnnotationError."""
    parts = check_parts(content, file)
    labels, notes, first = _labels(parts, file, outlined), defaultdict[str, list[str]](list), len(found.samples)
    found.class_names = tuple(dict.fromkeys([*found.class_names, *labels.values()]))
    # Objects by the id of their image; those without a readable one may belong to any image.
    listed = [entry.get('id') for entry in parts['images'] if isinstance(entry, dict)]
    of_image: dict[Key, list[tuple[str, dict[str, Any]]]] = {key: [] for key in listed if isinstance(key, int | str)}
    orphans = []
    for number, entry in enumerate(parts['annotations']):
        with found.left_out.catch():
            where = place_of(file, 'annotation', number, entry)
            orphans.append(where)
            key = parse_key(entry, 'image_id', where, of_image)
            if key not in of_image:
                raise AnnotationError(f'{where}: image_id {key} is not the id of an image')
            of_image[key].append((where, entry))
            orphans.pop()
    # Images; one that is listed twice gets the objects of both entries when samples are joined.
    owners: dict[Key, tuple[str, Path]] = {}
    for number, entry in enumerate(parts['images']):
        with found.left_out.catch():
            where = place_of(file, 'image', number, entry)
            key, name, size = parse_image(entry, where)
            image = image_of(name, file, where)
            with found.dropping(image):
                other, first_image = owners.setdefault(key, (name, image))
                if other != name:
                    found.dropped.add(first_image)
                    raise AnnotationError(f'{where}: the id is used twice, for {other} and {name}: neither is used')
                real = check_size(size if any(size) else (None, None), image, where)
                instances = []
                for at, one in of_image.get(key, ()):
                    if isinstance(one, dict) and 'segments_info' in one:
                        instances += _panoptic(one, file, real, labels, at)
                    else:
                        known = len(notes.get(OUTLINES, ()))
                        instances.append(_instance(one, key, real, labels, at, outlined, notes))
                        found.count_attributes(one.get('attributes'))
                        if len(reasons := notes.get(OUTLINES, [])) > known:
                            found.without_outline.setdefault(image, reasons[-1])
                instances.sort(key=lambda instance: (not instance.ignored, -sum(shape.area for shape in instance.outline)))
                found.samples.append(Sample(image, split_in((), stated_split(entry)) or split, tuple(instances)))
    found.notes += [f'{what}: {len(where)}, such as {where[0]}' for what, where in notes.items()]
    if orphans:  # an image that seems to show nothing may be theirs
        added = found.samples[first:]
        found.samples[first:] = filter(_shows_objects, added)
        found.left_out += [
            f'{file}: {sample.image}: has no object, but objects of unknown images may be its'
            for sample in added
            if not _shows_objects(sample)
        ]


def _shows_objects(sample: Sample) -> bool:
    """True if an object is at least a pixel wide and high; smaller ones are left out later."""
    boxes = (instance.box for instance in sample.instances)
    return any(x1 - x0 >= 1 and y1 - y0 >= 1 for x0, y0, x1, y1 in boxes)


def _labels(content: dict[str, Any], file: Path, outlined: bool) -> dict[Key, str]:
    """Category names by id, sorted; `outlined`: none may be called like the background. Raises AnnotationError."""
    found = parse_categories(content['categories'], file)
    if outlined and BACKGROUND in found.values():
        raise AnnotationError(f'{file}: a category is called {BACKGROUND!r}, as the pixels without an object; rename it')
    return dict(sorted(found.items(), key=lambda item: (isinstance(item[0], str), item[0])))


def _instance(
    annotation: dict[str, Any],
    image: Key,
    size: tuple[int, int],
    labels: dict[Key, str],
    where: str,
    outlined: bool,
    notes: dict[str, list[str]],
) -> Instance:
    """Object of an annotation. An outline that cannot be used becomes a note if there is a box and `outlined` is False."""
    one = parse_object(annotation, (image,), labels, where)
    label, shapes = labels[one.category], list[Shape]()
    try:
        if outlined or annotation.get('segmentation'):
            shapes = _shapes(annotation, size, f'{where} ({label!r})')
    except AnnotationError as error:
        if outlined or not annotation.get('bbox'):
            raise
        notes[OUTLINES].append(str(error))
    if 'score' in annotation:
        notes['objects with a score, which is not used: were they drawn by a person?'].append(where)
    if one.ignored:
        notes[CROWDS].append(where)
    if one.has_keypoints:
        notes['objects with keypoints, of which the boxes are used'].append(where)
    return Instance(label, one.box, tuple(shapes), one.corners, ignored=one.ignored)


def _panoptic(
    annotation: dict[str, Any], file: Path, size: tuple[int, int], labels: dict[Key, str], where: str
) -> list[Instance]:
    """Objects of a panoptic image, whose pixels have the number red + 256 green + 65536 blue. Raises AnnotationError."""
    name = get_member(annotation, 'file_name', str, where)
    places = (file.parent / file.stem / name, file.parent / name, file.parent.parent / file.stem / name)
    picture = next((place for place in places if is_file(place)), None)
    if picture is None:
        raise AnnotationError(f'{where}: there is no {places[0]}, the segments of its image')
    with open_image(picture) as opened:
        numbers = np.array(opened.convert('RGB'), np.int64) @ (1, 1 << 8, 1 << 16)
    if numbers.shape != size[::-1]:
        raise AnnotationError(f'{where}: {picture} has {numbers.shape[::-1]} pixels, its image {size}')
    instances = []
    for number, segment in enumerate(get_member(annotation, 'segments_info', list, where)):
        at = f'{where}: segments_info[{number}]'
        category = parse_key(segment, 'category_id', at)
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
