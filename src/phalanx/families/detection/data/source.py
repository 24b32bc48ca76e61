"""Interfaces of detection data sets: `Data` names classes and splits, `Source` reads the samples of one split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from phalanx.data import samples

Boxes = npt.NDArray[np.float32]  # [N, 4] xyxy in pixels
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Objects:
    """Annotation of an image: N objects."""

    boxes: Boxes
    classes: npt.NDArray[np.int64]  # [N]
    ignored: Mask  # [N] crowds and difficult objects: detections of them count neither for nor against
    areas: npt.NDArray[np.float32]  # [N] in pixels, as annotated: in COCO that of the outline; COCO's small, medium and large

    @classmethod
    def plain(cls, boxes: Boxes, classes: npt.NDArray[np.int64]) -> Self:
        """Objects that are all evaluated, with the areas of their boxes."""
        return cls(boxes, classes, np.zeros(len(boxes), np.bool_), areas_of(boxes))

    @classmethod
    def none(cls) -> Self:
        return cls.plain(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))

    @classmethod
    def all_of(cls, parts: Sequence[Objects]) -> Self:
        return cls(
            np.concatenate([part.boxes for part in parts]),
            np.concatenate([part.classes for part in parts]),
            np.concatenate([part.ignored for part in parts]),
            np.concatenate([part.areas for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.boxes)

    def at(self, rows: Mask | npt.NDArray[np.integer[Any]]) -> Objects:
        return Objects(self.boxes[rows], self.classes[rows], self.ignored[rows], self.areas[rows])

    def rows(self) -> Iterator[tuple[list[float], int, bool, float]]:
        """Box, class, ignored and area of each object."""
        return zip(self.boxes.tolist(), self.classes.tolist(), self.ignored.tolist(), self.areas.tolist(), strict=True)

    def moved(self, x: float, y: float) -> Objects:
        """Shift boxes to the right and down, in pixels."""
        return replace(self, boxes=self.boxes + np.array([x, y, x, y], np.float32))

    def clipped(self, width: float, height: float) -> Objects:
        """Clip boxes to an image; drop those outside."""
        boxes = np.clip(self.boxes, 0, np.array([width, height, width, height], np.float32))
        return replace(self, boxes=boxes).at(have_area(boxes))


def areas_of(boxes: Boxes) -> npt.NDArray[np.float32]:  # [N, 4] -> [N]
    areas: npt.NDArray[np.float32] = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return areas


def have_area(boxes: Boxes) -> Mask:  # [N, 4] -> [N]
    """Mask of the boxes with positive width and height; NaN coordinates give False."""
    return (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])


class Source(samples.Source[Objects], Protocol):
    """Samples of one split; boxes are as annotated and may reach out of their image."""

    @property
    def notes(self) -> Mapping[str, int]:
        """Oddities of the annotations and their number."""


Data = samples.DataOfClasses[Source]
