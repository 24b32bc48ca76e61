"""What was found and what was there, of every image that was judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from phalanx import dist
from phalanx.detection.data.source import Boxes, Objects


@dataclass(frozen=True)
class Detections:
    """What was found on one image, the most probable first; not clipped to it."""

    boxes: Boxes  # [n, 4] xyxy in pixels of the image as it was read
    scores: npt.NDArray[np.float32]  # [n] 0 to 1
    classes: npt.NDArray[np.int64]  # [n]

    def __len__(self) -> int:
        return len(self.boxes)


class Judged(Protocol):
    """What a metric must know of a batch."""

    @property
    def indices(self) -> Sequence[int]:
        """The number of each sample in its data set."""

    @property
    def truths(self) -> Sequence[Objects]:
        """What each image shows, in pixels of the image as it was read."""


class Gathered:
    """Predictions and truth of the images that this rank has seen, and after `gather` of those that any has seen."""

    def __init__(self) -> None:
        self.images: dict[int, tuple[Detections, Objects]] = {}  # by the number of the sample, so that none counts twice

    def update(self, prediction: Sequence[Detections], batch: Judged) -> None:
        for index, found, truth in zip(batch.indices, prediction, batch.truths, strict=True):
            self.images[index] = (found, truth)

    def gather(self) -> None:
        parts = dist.gather_objects(self.images)
        self.images = dict(sorted((index, pair) for part in parts for index, pair in part.items()))
