"""Samples as all annotation readers return them: images with objects, masks, texts or tables."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

from phalanx.data.checks import AnnotationError
from phalanx.data.coco_file import StoredPolygons
from phalanx.data.shapes import Box, Corners, Shape

Family = Literal['segmentation', 'detection', 'recognition', 'table', 'text_detection']
FAMILIES: tuple[Family, ...] = get_args(Family)
SplitName = Literal['train', 'val', 'test', '']  # '': not given by the annotations
SPLIT_NAMES: tuple[SplitName, ...] = ('train', 'val', 'test')


class Instance(NamedTuple):
    """Object, or line of text, marked on an image."""

    label: str
    box: Box
    outline: Sequence[Shape] = ()  # empty where only a box was drawn
    corners: Corners = ()  # of the outline that a line of text was marked with, clockwise; of four, from the upper left
    text: str | None = None  # what is written there
    ignored: bool = False  # a crowd, or too difficult to count


class Packed(Sequence[Instance]):
    """Boxes of an image without texts, whose outlines are in a file: a million instances would take 400 MB."""

    __slots__ = ('_file', '_ignored', '_numbers', 'labels')

    def __init__(self, instances: Sequence[Instance]) -> None:
        stored = [one.outline if isinstance(one.outline, StoredPolygons) else None for one in instances]
        self._file = next((outline.path for outline in stored if outline), Path())
        self.labels, self._ignored = tuple(one.label for one in instances), bytes(one.ignored for one in instances)
        places = ((outline.begin, outline.end) if outline else (0, 0) for outline in stored)
        self._numbers = array(
            'd', [number for one, place in zip(instances, places, strict=True) for number in (*one.box, *place)]
        )

    @classmethod
    def of(cls, instances: Sequence[Instance]) -> Self | tuple[Instance, ...]:
        """The instances, packed if nothing is lost."""
        is_plain = all(
            not one.corners and one.text is None and (not one.outline or isinstance(one.outline, StoredPolygons))
            for one in instances
        )
        return cls(instances) if is_plain else tuple(instances)

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Instance]:
        numbers = iter(self._numbers)
        for label, is_ignored, *box, begin, end in zip(self.labels, self._ignored, *[numbers] * 6, strict=True):
            outline = StoredPolygons(self._file, int(begin), int(end)) if end else ()
            yield Instance(label, tuple(box), outline, ignored=bool(is_ignored))

    def __getitem__(self, place: Any) -> Any:
        return [*self][place]


@dataclass(frozen=True)
class Sample:
    """Image with its annotation; the fields that are set depend on the format."""

    image: Path
    split: SplitName = ''
    instances: Sequence[Instance] = ()
    mask: Path | None = None  # an image with a colour or a number for each pixel
    text: str | None = None  # all that is written on it
    table: str | None = None  # the `html` entry of PubTabNet as JSON: its lists of tokens would take ten times the memory
    size: tuple[int, int] | None = None  # (width, height) of the upright image, once somebody read it

    @property
    def labels(self) -> Sequence[str]:
        """Labels of all instances."""
        return self.instances.labels if isinstance(self.instances, Packed) else [one.label for one in self.instances]


def join(samples: Sequence[Sample], where: str) -> Sample:
    """One sample of several annotations of an image: files per class, or an image that is listed twice.

    Equal objects count once; large ones lie below small ones. Raises AnnotationError where texts, tables or masks differ.
    """
    first = samples[0]
    if len(samples) == 1:
        return first
    if any((other.text, other.table, other.mask) != (first.text, first.table, first.mask) for other in samples):
        masks = ', '.join(other.mask.name for other in samples if other.mask)
        several = f': {masks}; paint the masks of an image into one' if masks else ''
        raise AnnotationError(f'{where}: is annotated {len(samples)} times, with different texts, tables or masks{several}')
    instances: dict[tuple[object, ...], Instance] = {}
    for instance in sorted(
        (instance for sample in samples for instance in sample.instances), key=lambda instance: instance.ignored
    ):
        instances.setdefault((instance.label, *(round(value) for value in instance.box)), instance)
    ordered = sorted(
        instances.values(), key=lambda instance: (not instance.ignored, -sum(shape.area for shape in instance.outline))
    )
    return replace(first, instances=tuple(ordered))


class LeftOut(list[str]):
    """Messages about annotations that cannot be used, with file, place and reason."""

    @contextmanager
    def catch(self) -> Iterator[None]:
        """Catch the AnnotationError of the block and add its message."""
        try:
            yield
        except AnnotationError as error:
            self.append(str(error))


USED_ATTRIBUTES = {'rotation', 'is_crowd', 'iscrowd', 'difficult'}  # of COCO, Datumaro and VOC files


@dataclass
class AnnotationSet:
    """Samples and notes of one format in a folder."""

    samples: list[Sample] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    class_names: tuple[str, ...] = ()  # in the order of the format; empty: alphabetical
    notes: list[str] = field(default_factory=list)
    boxes_first: bool = False  # outlines come with boxes, which are the usual use of the format
    classes_from: Path | None = None  # the file that names the classes of masks
    dropped: set[Path] = field(default_factory=set)  # images with an object that cannot be used, in whatever file
    without_outline: dict[Path, str] = field(default_factory=dict)  # images with an outline that cannot be used: why
    unused: Counter[str] = field(default_factory=Counter)  # attributes and the like, which no family learns
    are_classes: bool = False  # texts that seem to be classes of whole images

    def count_attributes(self, attributes: object) -> None:
        """Count the attributes of an object (a mapping from name to value) that are set and not used."""
        if isinstance(attributes, dict):
            is_set = {name for name, value in attributes.items() if value not in (None, False, '', 'False', 'false', {}, [])}
            self.unused.update(f'attributes {name!r}' for name in is_set - USED_ATTRIBUTES)

    @contextmanager
    def dropping(self, image: Path) -> Iterator[None]:
        """Catch the AnnotationError of the block: no annotation of `image` is used, as its object would become background."""
        with self.left_out.catch():
            try:
                yield
            except AnnotationError:
                self.dropped.add(image)
                raise

    def by_image(self) -> list[list[Sample]]:
        """The samples of each image, without images with an object that cannot be used."""
        of_image = defaultdict[Path, list[Sample]](list)
        for sample in self.samples:
            if sample.image not in self.dropped:
                of_image[sample.image].append(sample)
        return list(of_image.values())

    def has_outlines(self) -> bool:
        """True if masks or outlines show objects pixel by pixel, at least some."""
        return any(sample.mask or any(one.outline for one in sample.instances) for sample in self.samples)

    def families(self) -> list[Family]:
        """Families that these samples can train, the likeliest first."""
        samples = self.samples
        if any(sample.table for sample in samples):
            return ['table']
        kinds = Counter(
            (one.text is not None, bool(one.outline), one.ignored) for sample in samples for one in sample.instances
        )
        texts, outlined, ignored = (sum(kinds[kind] for kind in kinds if kind[n]) for n in range(3))
        written = texts * 2 > kinds.total()
        if any(sample.text is not None for sample in samples):
            return ['recognition', 'text_detection'] if written else ['recognition']
        if any(sample.mask for sample in samples):
            return ['segmentation']
        if not kinds:
            return []
        is_stuff = ignored == kinds.total()  # regions, which detection would neither learn nor count
        drawn: list[Family] = (
            ['segmentation', 'detection']
            if outlined * 2 > kinds.total() and (is_stuff or not self.boxes_first)
            else ['detection', 'segmentation']
        )
        if not written:
            return [*drawn, 'text_detection']
        is_read = any(one.text for sample in samples for one in sample.instances)
        return ['recognition', 'text_detection', *drawn] if is_read else ['text_detection', *drawn]
