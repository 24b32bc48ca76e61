"""Images with boxes in shards of WebDataset (tar) or MosaicML Streaming (MDS)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.data import shards
from phalanx.data.checks import AnnotationError, parse_json, parse_numbers
from phalanx.data.coco import Key, parse_categories, parse_object
from phalanx.data.folders import Problems, read_class_names
from phalanx.data.samples import Draw, Image, Split
from phalanx.data.voc import read_voc_file
from phalanx.data.yolo import PoseGuess
from phalanx.families.detection.data.annotated import KEYPOINTS, ROTATED, AnnotatedImages, Annotations
from phalanx.families.detection.data.voc import add_voc
from phalanx.families.detection.data.yolo import add_rows

FORMS = 'COCO\'s objects, [{"bbox": [x, y, width, height], "category": "name"}, ...] or {"annotations": [...]}'


@dataclass(kw_only=True)
class Shards(shards.ShardData):
    """Images and their boxes in shards below `root`.

    `train`, `eval`: a folder of .tar files or MDS shards, or names of tar files with `*` or `{000..123}`. `image`, `boxes`: the
    field (suffix, column) of each, `;` between alternatives. Boxes are a list of COCO's objects (JSON), whose `category` is a
    name, or whose `category_id` is an id of their `categories`, or without these a number in the order of `classes`; VOC's XML;
    or YOLO's lines. All samples of a split have the same of these three. `classes`: class names in the order of their ids, or a
    file below `root` with one name per line. `first_id`: the number of the first class, needed if no object of a split without
    `categories` has the number 0. `empty_images`: train also on images without objects.
    """

    boxes: str = 'json;xml;txt;boxes;annotations;objects;label'
    classes: str | tuple[str, ...] = 'classes.txt'
    first_id: int | None = None
    empty_images: bool = False

    def __post_init__(self) -> None:
        self.class_names = read_class_names(self.classes, self.root)

    def split(self, split: Split) -> ShardedImages:
        """Open the shards of a split. Raises FileNotFoundError, and ValueError with all malformed annotations."""
        opened, problems, poses = self.open(split, 'boxes', self.boxes), Problems(), PoseGuess()
        texts = [opened.annotation(index, 1) for index in range(len(opened))]
        kinds = {text.lstrip()[:1] if text.lstrip()[:1] in '[{<' else '' for text in texts if text.strip()}
        is_yolo = kinds == {''}
        annotations = Annotations(self.root, opened.files[0].parent, relative=is_yolo)
        numbers = set[Any]()  # `category_id`s of samples without `categories`
        if len({kind.replace('{', '[') for kind in kinds}) > 1:
            raise ValueError(f'{annotations.place}: its samples have boxes of different formats; write them in one')
        for index, text in enumerate(texts):
            where = opened.label(index, 1)
            with problems:
                if is_yolo or not text.strip():
                    number = annotations.add_image(str(index))
                    add_rows(text, where, number, annotations, problems, poses, len(self.class_names))
                elif text.lstrip().startswith('<'):
                    self._add_xml(str(index), text, where, annotations)
                else:
                    numbers |= self._add_json(str(index), text, where, annotations, problems)
        if numbers and 0 not in numbers and self.first_id is None:
            raise ValueError(
                f'{annotations.place}: its samples have no `categories`, and no object has the category_id 0, so ids may begin '
                f'with 1: set data.first_id to the id of {self.class_names[0]!r}, 0 or 1'
            )
        with problems:
            poses.check(annotations.place)
        problems.check()
        found = annotations.source(keep_empty=split == 'eval' or self.empty_images)
        notes = {**found.notes, **opened.notes}
        return ShardedImages(**{**vars(found), 'notes': notes}, shards=opened)

    def _add_xml(self, image: str, text: str, where: Path, annotations: Annotations) -> None:
        if (file := read_voc_file(where, text.encode())) is None:
            raise AnnotationError(f'{where}: is not an annotation of VOC, whose root element is `annotation`')
        labels = {name: label for label, name in enumerate(self.class_names)}
        add_voc(image, file, annotations, labels, learn_difficult=False)

    def _add_json(self, image: str, text: str, where: Path, annotations: Annotations, problems: Problems) -> set[Any]:
        """Add the boxes of a sample; return each `category_id` that no `categories` explain."""
        content: Any = parse_json(text, where)
        facts: dict[str, Any] = content if isinstance(content, dict) else {}
        entries = facts.get('annotations') if facts else content
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise AnnotationError(f'{where}: expected {FORMS}, got {text.strip()[:80]!r}')
        own: dict[str, Any] = facts['image'] if isinstance(facts.get('image'), dict) else facts
        height, width = parse_numbers([own.get('height') or 0, own.get('width') or 0], 2, str(where), 'height and width')
        number = annotations.add_image(image, (int(height), int(width)))
        labels = {name: label for label, name in enumerate(self.class_names)}
        explained = parse_categories(facts.get('categories') or (), where)
        names: dict[Key, str] = explained or dict(enumerate(self.class_names, self.first_id or 0))
        for place, entry in enumerate(entries, 1):
            with problems:
                named = entry.get('category')
                known: dict[Key, str] = {named: named} if isinstance(named, str) else names
                entry |= {'image_id': 0} | ({'category_id': named} if isinstance(named, str) else {})
                one = parse_object(entry, (0,), known, f'{where}: object {place}')
                if (label := labels.get(known[one.category])) is None:
                    count = f'data.classes names {len(labels)}: {", ".join(list(labels)[:5])} ...'
                    raise AnnotationError(f'{where}: object {place}: {known[one.category]!r} is not a class; {count}')
                if one.has_keypoints or one.corners:
                    annotations.notes[KEYPOINTS if one.has_keypoints else ROTATED] += 1
                annotations.add_box(number, one.box, label, area=one.area, ignored=one.ignored)
        return set() if explained else {e['category_id'] for e in entries if isinstance(e.get('category_id'), int)}


@dataclass(frozen=True, kw_only=True)
class ShardedImages(AnnotatedImages):
    """Source of the images in shards; the path of each is its number there."""

    shards: shards.Shards

    def check_files(self) -> None:
        """Do nothing: opening the shards has found them."""

    def digest(self) -> bytes:
        return super().digest() + self.shards.digest()

    def name(self, index: int) -> str:
        return str(self.shards.label(int(self.paths[index]), 0))

    def files(self, draw: Draw) -> list[str]:
        return [str(self.shards.file(int(self.paths[draw.index])))]

    def image(self, index: int) -> Image:
        return self.shards.image(int(self.paths[index]), 0)
