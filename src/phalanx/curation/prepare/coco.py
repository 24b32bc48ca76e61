"""COCO instances: a JSON file with images, categories and annotations (boxes, polygons or run lengths)."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from phalanx.curation.prepare.bitmaps import bitmap_instance
from phalanx.curation.prepare.coco_content import CocoContent, load_coco
from phalanx.curation.prepare.label_maps import BACKGROUND
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Packed, Sample, SplitName, join
from phalanx.curation.prepare.splits import settle_splits
from phalanx.curation.prepare.tree import Tree, split_in
from phalanx.data.checks import AnnotationError, check_size, find_file, get_member, is_file, open_image, parse_json, read_json
from phalanx.data.coco import Key, parse_categories, parse_key, parse_object
from phalanx.data.coco_file import PARTS, Block, StoredPolygons, check_parts, place_of_polygons, read_place, read_polygons
from phalanx.data.shapes import Polygon, Shape, polygon, sized_runs

KEYS = {  # of annotations
    *('id', 'image_id', 'category_id', 'bbox', 'area', 'iscrowd', 'ignore', 'segmentation', 'score', 'attributes'),
    *('keypoints', 'num_keypoints'),
}
OUTLINES = 'outlines that cannot be used, of boxes that can'
CROWDS = (
    'crowds, ignored in detection (supervision, V7 and Encord write single objects with holes or masks as crowds; set iscrowd '
    'to 0 for these)'
)


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
        read_content(load_coco(file) or read_json(file), file, image_of, found, split=split, outlined=outlined)
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
            continue
        if isinstance(content, CocoContent):
            images, is_annotated = content.images, content.has_annotations
        elif isinstance(content, dict) and isinstance(content.get('annotations'), list) and 'images' in content:
            images, is_annotated = content['images'], bool(content['annotations'])
        else:
            continue
        if not is_annotated:  # as files of images for a test: nobody annotated these
            found.notes.append(f'{path}: lists {len(images)} images and no annotation: not used')
            continue
        with found.left_out.catch():
            read_content(content, path, tree.image, found, split=tree.split_of(path))
        tree.jsons[path] = None  # no other format needs it


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
    if not isinstance(content, CocoContent):
        parts = check_parts(content, file)
        content = CocoContent((Block(part, 0, parts[part]) for part in PARTS), file)
    labels, first = _labels(content, file, outlined), len(found.samples)
    found.class_names = tuple(dict.fromkeys([*found.class_names, *labels.values()]))
    found.left_out += content.orphans
    # Images; one that is listed twice gets the objects of both entries when samples are joined.
    owners: dict[Key, tuple[str, Path]] = {}
    with file.open('rb') as opened:
        objects = _Objects(content, opened, labels, found, outlined=outlined)
        for where, listed, title, word in content.images:
            with found.left_out.catch():
                if isinstance(listed, AnnotationError):
                    raise listed
                image = _find_image(image_of, listed.name, title, file, where)
                with found.dropping(image):
                    other, first_image = owners.setdefault(listed.key, (listed.name, image))
                    if other != listed.name:
                        found.dropped.add(first_image)
                        raise AnnotationError(f'{where}: the id is used twice, for {other} and {listed.name}: neither is used')
                    size = check_size(listed.size if any(listed.size) else (None, None), image, where)
                    instances = Packed.of(objects.of_image(image, listed.key, size))
                    found.samples.append(Sample(image, split_in((), word) or split, instances, size=size))
    found.notes += [f'{what}: {len(where)}, such as {where[0]}' for what, where in objects.notes.items()]
    if content.orphans:  # an image that seems to show nothing may be theirs
        added = found.samples[first:]
        found.samples[first:] = filter(_shows_objects, added)
        found.left_out += [
            f'{file}: {sample.image}: has no object, but objects of unknown images may be its'
            for sample in added
            if not _shows_objects(sample)
        ]


def _find_image(image_of: Callable[[str, Path, str], Path], name: str, title: str, file: Path, where: str) -> Path:
    """The image of a name or, if there is none, with the `title` that it was uploaded with. Raises AnnotationError."""
    try:
        return image_of(name, file, where)
    except AnnotationError:
        if not title:
            raise
        return image_of(title, file, where)


def _shows_objects(sample: Sample) -> bool:
    """True if an object is at least a pixel wide and high; smaller ones are left out later."""
    boxes = (instance.box for instance in sample.instances)
    return any(x1 - x0 >= 1 and y1 - y0 >= 1 for x0, y0, x1, y1 in boxes)


def _labels(content: CocoContent, file: Path, outlined: bool) -> dict[Key, str]:
    """Category names by id, sorted; `outlined`: none may be called like the background. Raises AnnotationError."""
    found = parse_categories(content.categories, file)
    if outlined and BACKGROUND in found.values():
        raise AnnotationError(f'{file}: a category is called {BACKGROUND!r}, as the pixels without an object; rename it')
    return dict(sorted(found.items(), key=lambda item: (isinstance(item[0], str), item[0])))


class _Objects:
    """Objects of the images of a COCO file; `outlined`: they must have outlines."""

    def __init__(
        self, content: CocoContent, file: BinaryIO, labels: dict[Key, str], found: AnnotationSet, *, outlined: bool
    ) -> None:
        self.content, self.file, self.labels, self.found, self.outlined = content, file, labels, found, outlined
        self.notes = defaultdict[str, list[str]](list)

    def of_image(self, image: Path, key: Key, size: tuple[int, int]) -> list[Instance]:
        """The objects of an image, crowds below single objects and large ones below small ones. Raises AnnotationError."""
        objects = self.content.take_annotations(key)
        found: list[tuple[bool, float, Instance]] = []
        seen = set[tuple[object, ...]]()
        for (where, entry), drawn in zip(objects, self._polygons([entry for _, entry in objects], size), strict=True):
            if 'segments_info' in entry:
                instances = _panoptic(entry, self.content.path, size, self.labels, where)
            else:
                known = len(self.notes.get(OUTLINES, ()))
                instances = [self._instance(entry, key, size, where, drawn)]
                self.found.count_attributes(entry.get('attributes'))
                self.found.count_attributes({key: entry[key] for key in entry.keys() - KEYS})  # of FiftyOne
                if len(reasons := self.notes.get(OUTLINES, [])) > known:
                    self.found.without_outline.setdefault(image, reasons[-1])
            for instance in instances:
                area, place = sum(shape.area for shape in instance.outline), place_of_polygons(entry.get('segmentation'))
                same = str(entry.get('id', where)), instance.label, instance.box, area
                if same in seen:  # pylabel
                    self.notes['objects that are listed again with their id, used once'].append(where)
                    continue
                seen.add(same)
                if place and instance.outline and not instance.corners:
                    instance = instance._replace(outline=StoredPolygons(self.content.path, *place))
                found.append((not instance.ignored, -area, instance))
        return [instance for _, _, instance in sorted(found, key=itemgetter(0, 1))]

    def _polygons(self, entries: list[dict[str, Any]], size: tuple[int, int]) -> list[list[Polygon]]:
        """The polygons of each entry that `read_blocks` left in the file; none at all if one of them cannot be used."""
        places = [place_of_polygons(entry.get('segmentation')) for entry in entries]
        try:
            stored = iter(read_polygons(self.file, [place for place in places if place], size))
        except ValueError:
            return [[] for _ in entries]
        return [next(stored) if place else [] for place in places]

    def _instance(
        self, entry: dict[str, Any], image: Key, size: tuple[int, int], where: str, drawn: Sequence[Shape]
    ) -> Instance:
        """Object of an annotation. An outline that cannot be used becomes a note if there is a box and none is needed."""
        one = parse_object(entry, (image,), self.labels, where)
        label, shapes = self.labels[one.category], drawn
        try:
            if one.corners and entry.get('segmentation'):
                shapes = [polygon(one.corners, size, f'{where} ({label!r})')]
            elif not drawn and (self.outlined or entry.get('segmentation')):
                shapes = self._shapes(entry, size, f'{where} ({label!r})')
        except AnnotationError as error:
            if self.outlined or not entry.get('bbox'):
                raise
            self.notes[OUTLINES].append(str(error))
        if 'score' in entry:
            self.notes['objects with a score, which is not used: were they drawn by a person?'].append(where)
        if one.ignored:
            self.notes[CROWDS].append(where)
        if one.has_keypoints:
            self.notes['objects with keypoints, of which the boxes are used'].append(where)
        return Instance(label, one.box, tuple(shapes), one.corners, ignored=one.ignored)

    def _shapes(self, entry: dict[str, Any], size: tuple[int, int], where: str) -> list[Shape]:
        """Polygons of an object, or its run lengths. Raises AnnotationError."""
        place = place_of_polygons(entry.get('segmentation'))
        if place and (text := read_place(self.file, place)).startswith(b'['):  # else the file itself says `bytes 1 to 2`
            entry = {'segmentation': parse_json(text, f'{where}: segmentation')}
        segmentation = get_member(entry, 'segmentation', (list, dict), where)
        if not segmentation:
            raise AnnotationError(f'{where}: has no outline')
        if isinstance(segmentation, list):
            if not all(isinstance(flat, list) and len(flat) % 2 == 0 for flat in segmentation):
                raise AnnotationError(f'{where}: expected lists x0, y0, x1, y1, ... of its polygons')
            pairs = [[list(pair) for pair in zip(flat[::2], flat[1::2], strict=True)] for flat in segmentation]
            return [polygon(points, size, where) for points in pairs]
        return [sized_runs(segmentation, size, where)]


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
        instance = bitmap_instance(labels[category], mask, 0, 0, size, at)
        instances.append(instance._replace(ignored=bool(segment.get('iscrowd'))))
    return instances
