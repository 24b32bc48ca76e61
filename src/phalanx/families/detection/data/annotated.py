"""Image files with boxes, collected from annotation files into a few flat arrays.

Flat, because loader workers share the memory of their parent until a page is written to, and reference counts of millions of
Python objects are writes.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phalanx.data.bands import Bands
from phalanx.data.checks import FRACTIONS
from phalanx.data.folders import check_present
from phalanx.data.image import read_image, turned_hint
from phalanx.data.listed import Files, Packed, digest_arrays
from phalanx.data.samples import Draw, Image, SampleError
from phalanx.data.shapes import Box, BoxColumns
from phalanx.families.detection.data.source import Mask, Objects, areas_of, have_area

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
UNKNOWN = (0, 0)  # size of an image without one in its annotation
FEW = 10  # boxes: fewer say nothing about a data set
KEYPOINTS = 'objects with keypoints, of which the boxes are taken'  # notes that several formats need
POLYGONS = 'polygons, of which the bounding boxes are taken'
ROTATED = 'rotated boxes, of which the bounding boxes are taken'


class Annotations:
    """Images and boxes of one split, collected from annotation files."""

    def __init__(self, root: Path, place: Path, *, relative: bool = False) -> None:
        """`place`: file or folder with the annotations of this split. `relative`: boxes are fractions of width and height."""
        self.root, self.place, self.relative = root, place, relative
        self._paths: list[str] = []
        self._sizes = array('l')  # height and width of each image
        self._missing: dict[int, str] = {}  # number of an image -> its missing annotation file
        self._owners, self._labels, self._ignored = array('l'), array('l'), array('b')
        self._boxes, self._areas = array('d'), array('d')
        self.cut_off = 0  # boxes that were clipped to their image before they were added
        self.notes: Counter[str] = Counter()  # oddities and their number

    def __len__(self) -> int:
        return len(self._paths)

    def add_image(self, path: str, size: tuple[int, int] = UNKNOWN) -> int:
        """Add the image at `path`, relative to the root, with its annotated `size` (height, width); return its number."""
        self._paths.append(path)
        self._sizes.extend(size)
        return len(self._paths) - 1

    def add_missing(self, path: str, annotation: str) -> None:
        """Add an image without its annotation file."""
        self._missing[self.add_image(path)] = annotation

    def add_box(self, image: int, box: Box, label: int, *, area: float = math.nan, ignored: bool = False) -> None:
        """Add one box; an area of NaN is that of the box."""
        self._owners.append(image)
        self._boxes.extend(box)
        self._labels.append(label)
        self._areas.append(area)
        self._ignored.append(ignored)

    def add_boxes(self, added: BoxColumns) -> None:
        """Add many boxes."""
        self._owners.extend(added.images)
        self._boxes.extend(added.boxes)
        self._labels.extend(added.labels)
        self._areas.extend(added.areas)
        self._ignored.extend(added.ignored)

    def source(
        self,
        *,
        keep_empty: bool,
        place: Callable[[str], str] = str,
        classes: Sequence[int] | None = None,
        bands: Bands | None = None,
    ) -> AnnotatedImages:
        """Source of the collected images; `keep_empty`: with images without objects.

        `place` maps the name of an image to its path below the root (default: itself), `classes` labels to classes (default:
        themselves). Raises ValueError if no image has an object.
        """
        # Flat arrays: file names, sizes [I, 2], and one row per object.
        files, labels, notes = [place(path) for path in self._paths], np.array(self._labels, np.int64), Counter(self.notes)
        if classes is not None:
            labels = np.array(classes, np.int64)[labels]
        owners, sizes = np.array(self._owners, np.int64), np.array(self._sizes, np.int64).reshape(-1, 2)
        boxes, areas, exchanged = self._upright_boxes()
        notes['boxes whose corners were exchanged'] = exchanged
        objects = Objects(boxes, labels, np.array(self._ignored, np.bool_), areas)
        if not self.relative and len(boxes) and boxes.min() >= 0 and boxes.max() <= 1:
            raise ValueError(f'{self.place}: {FRACTIONS}')
        # Leave out boxes without area, and count what a user should know about.
        good = have_area(boxes)
        notes['boxes without area, left out'] = (~good).sum()
        owners, objects = owners[good], objects.at(good)
        notes['crowds or difficult objects, neither trained on nor evaluated'] = objects.ignored.sum()
        outside = self.cut_off + self._reach_out(owners, sizes, objects).sum()
        # Most boxes out of bounds are a sign of x1, y1 in place of width and height, rather than of careless annotation.
        doubt = (
            ' - most of all: are corners written where width and height are expected?'
            if outside > max(FEW, len(owners) / 2)
            else ''
        )
        notes[f'boxes that reach out of their image, cut off in training{doubt}'] = outside
        # Images without counted objects are dropped unless `keep_empty`. Images without an annotation file stay, so that they
        # are reported by name.

        counted = np.bincount(owners[~objects.ignored], minlength=len(sizes))
        is_known = counted > 0
        is_known[list(self._missing)] = True
        notes['images without objects' + ('' if keep_empty else ', left out')] = (~is_known).sum()
        if not is_known.any():
            raise ValueError(f'{self.place}: not one of {len(sizes)} images has an object; check the annotations')
        # Objects in the order of their images, and where those of each image begin.
        is_kept = is_known | keep_empty
        selected, order = np.flatnonzero(is_kept), np.argsort(owners, kind='stable')
        rows, counts = order[is_kept[owners[order]]], np.bincount(owners, minlength=len(sizes))[selected]
        starts = np.concatenate([[0], counts.cumsum()])
        paths = Packed.of(files[number] for number in selected)
        oddities = {what: int(count) for what, count in notes.items() if count}
        missing = {place: self._missing[number] for place, number in enumerate(selected.tolist()) if number in self._missing}
        kept = objects.at(rows)
        return AnnotatedImages(self.root, paths, sizes[selected], starts, kept, self.relative, oddities, missing, bands)

    def _upright_boxes(self) -> tuple[Floats, Floats, int]:
        """Boxes [N, 4], areas [N], and the number of boxes drawn from right to left or upwards, whose corners are exchanged."""
        ends = np.array(self._boxes, np.float64).reshape(-1, 2, 2)
        exchanged = (ends[:, 1] < ends[:, 0]).any(1).sum()
        ends.sort(1)
        areas = np.array(self._areas, np.float64)
        areas = np.where(np.isnan(areas), (ends[:, 1] - ends[:, 0]).prod(1), areas)
        return ends.reshape(-1, 4).astype(np.float32), areas.astype(np.float32), int(exchanged)

    def _reach_out(self, owners: Integers, sizes: Integers, objects: Objects) -> Mask:
        """Mask [N] of boxes that exceed the image by more than a pixel or 1 % of the side; False for unknown sizes."""
        limits = np.ones((len(owners), 2)) if self.relative else sizes[owners][:, ::-1]
        # Some slack: annotation tools count from 0 or from 1, and round.
        slack = 0.01 if self.relative else 1
        x0, y0, x1, y1 = objects.boxes.T
        out = (x0 < -slack) | (y0 < -slack) | (x1 > limits[:, 0] + slack) | (y1 > limits[:, 1] + slack)
        return np.asarray(out & (limits[:, 0] > 0), np.bool_)


@dataclass(frozen=True)
class AnnotatedImages(Files):
    """Source of image files below `root`."""

    sizes: Integers  # [N, 2] height and width, 0 where unknown
    starts: Integers  # [N + 1] first object of each image, and the end of the last
    objects: Objects  # of all images, one after the other
    relative: bool  # boxes are fractions of width and height
    notes: Mapping[str, int]
    missing: Mapping[int, str]  # number of an image -> its missing annotation file
    bands: Bands | None = None  # of the images, if they are not RGB

    def check_files(self) -> None:
        check_present(self.root, self.paths, self.missing.values())

    def digest(self) -> bytes:
        one = self.objects
        return super().digest() + digest_arrays(self.sizes, self.starts, one.boxes, one.classes, one.ignored, one.areas)

    def image(self, index: int) -> Image:
        name = self.name(index)
        return read_image(name) if self.bands is None else self.bands.read(name)

    def read(self, draw: Draw) -> tuple[Image, Objects]:
        """Raises SampleError, also for an image of another size than annotated."""
        index = draw.index
        if index in self.missing:
            raise SampleError(f'{self.root / self.missing[index]}: there is no such file')
        path = Path(self.name(index))
        image = self.image(index)
        size, annotated = image.shape[:2], tuple(self.sizes[index].tolist())
        if annotated not in (UNKNOWN, size):
            # An image scaled or turned after its annotation would train silently on wrong boxes.
            raise SampleError(
                f'{path} is {size[1]} x {size[0]} pixels, but was annotated as {annotated[1]} x {annotated[0]}: '
                'its boxes may not fit; fix the annotation or leave the image out' + turned_hint(path, size, annotated)
            )
        objects = self.objects.at(np.arange(self.starts[index], self.starts[index + 1]))
        # Fractions become pixels only here, where the size is known.
        if self.relative:
            boxes = objects.boxes * np.array([size[1], size[0]] * 2, np.float32)
            objects = replace(objects, boxes=boxes, areas=areas_of(boxes))
        return image, objects


def absent_classes(source: object, class_names: Sequence[str]) -> tuple[str, ...]:
    """Classes without a counted object in `source`; none if its annotations are not known before its images are read."""
    if not isinstance(source, AnnotatedImages):
        return ()
    seen = set(source.objects.classes[~source.objects.ignored].tolist())
    return tuple(name for label, name in enumerate(class_names) if label not in seen)
