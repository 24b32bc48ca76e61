"""Base class of detection metrics: detections and true objects of every evaluated image."""

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from phalanx.families.detection.data.source import Objects
from phalanx.families.detection.metric.errors import errors_by_cause, explain_images, sum_up
from phalanx.families.detection.metric.matching import (
    MIN_IOU,
    MIN_SCORE,
    Comparison,
    Integers,
    compare,
    confusion,
    precision_recall_curves,
)
from phalanx.families.figures import Figure, Grade, Matrix
from phalanx.families.task import Labelled
from phalanx.parallel import dist
from phalanx.runtime.detection import Detections


class BoxMetric:
    """Predictions and truth of the images of this rank; on the main rank, after `gather`, of all images."""

    worst = f'Images with the most mistakes from a score of {MIN_SCORE:g} and an IoU of {MIN_IOU:g}'
    iou: float  # IoU threshold of `curves`

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self.class_names = class_names
        self.images: dict[int, tuple[Detections, Objects]] = {}  # by sample number, so that each counts once
        self.compared: dict[int, Comparison] = {}  # images of this rank, by sample number
        # Over all ranks, after `gather`: confusion matrix, and rows of detections and objects with the causes of errors.
        self.confused: Integers | None = None
        self.explained: tuple[npt.NDArray[np.float64], Integers] | None = None

    def curves(self) -> Mapping[str, Sequence[float]]:
        """Precision of each class at recall 0, 0.01, .. 1, without classes that have no object."""
        raise NotImplementedError

    def figures(self) -> list[Figure]:
        """Precision-recall curves, confusion matrix, and errors by cause."""
        title = f'Classes taken for one another, from a score of {MIN_SCORE:g} and an IoU of {MIN_IOU:g}'
        counts = self.confused if self.confused is not None else self._confusion()
        matrix = Matrix(title, [*self.class_names, 'nothing'], counts.tolist())
        if not (curves := self.curves()):
            return [matrix]
        explained = self.explained if self.explained is not None else explain_images(self.images)
        errors = errors_by_cause(sum_up(*explained, len(self.class_names)))
        return [precision_recall_curves(curves, self.iou), matrix, errors]

    def update(self, prediction: Sequence[Detections], batch: Labelled[Objects]) -> list[Grade | None]:
        for index, detections, truth in zip(batch.indices, prediction, batch.truths, strict=True):
            self.images[index] = (detections, truth)
            self.compared[index] = compare(detections, truth, len(self.class_names))
        return [self.compared[index].grade for index in batch.indices]

    def _confusion(self) -> Integers:
        return confusion((image.cells for image in self.compared.values()), len(self.class_names))

    def join(self, others: Sequence[Self]) -> None:
        """Add the images of other metrics, under new numbers: an image may be added several times."""
        metrics = [self, *others]
        self.compared = dict(enumerate(one for metric in metrics for one in metric.compared.values()))
        self.images = dict(enumerate(pair for metric in metrics for pair in metric.images.values()))
        self.confused = self.explained = None

    def gather(self) -> None:
        """Bring the images of all ranks to the main one, as arrays: pickled, they would take ten times the memory."""
        vars(self).pop('_values', None)  # a subclass caches what it computes of the images so far
        # Each rank matches its own images; the main one adds up their matrices, and the costs of their errors.
        rows, objects = map(torch.from_numpy, explain_images(self.images))
        self.explained = dist.gather_rows_to_main(rows).numpy(), dist.gather_rows_to_main(objects).numpy()
        self.confused = dist.gather_rows_to_main(torch.from_numpy(self._confusion()[None])).numpy().sum(0)
        if dist.world_size() > 1:
            packed = pack(self.images)
            self.images.clear()  # otherwise the main rank holds its share twice
            self.images = unpack(*(dist.gather_rows_to_main(torch.from_numpy(part)).numpy() for part in packed))
        self.images = dict(sorted(self.images.items()))


Counts = npt.NDArray[np.int64]  # [I, 3] number of each image, of its detections and of its objects
Rows = npt.NDArray[np.float32]  # float32 holds class numbers below 2**24 exactly


def pack(images: Mapping[int, tuple[Detections, Objects]]) -> tuple[Counts, Rows, Rows]:
    """Counts, detections [N, 6] (class, score, box) and objects [M, 7] (class, ignored, area, box) of all images."""
    # Plain arrays: one row per image, per detection and per object.
    counts = [(index, len(detected), len(truth)) for index, (detected, truth) in images.items()]
    detections = [np.column_stack((detected.classes, detected.scores, detected.boxes)) for detected, _ in images.values()]
    objects = [np.column_stack((truth.classes, truth.ignored, truth.areas, truth.boxes)) for _, truth in images.values()]
    return (
        np.array(counts, np.int64).reshape(-1, 3),
        np.concatenate([np.zeros((0, 6)), *detections], dtype=np.float32, casting='same_kind'),
        np.concatenate([np.zeros((0, 7)), *objects], dtype=np.float32, casting='same_kind'),
    )


def unpack(counts: Counts, detections: Rows, objects: Rows) -> dict[int, tuple[Detections, Objects]]:
    """Inverse of `pack`."""
    # Counts of all images, summed, are the ends of their rows.
    ends = counts.cumsum(0)
    of_images = (np.split(detections, ends[:, 1])[:-1], np.split(objects, ends[:, 2])[:-1])
    return {
        int(index): (
            Detections(detected[:, 2:], detected[:, 1], detected[:, 0].astype(np.int64)),
            Objects(truth[:, 3:], truth[:, 0].astype(np.int64), truth[:, 1] > 0, truth[:, 2]),
        )
        for index, detected, truth in zip(counts[:, 0], *of_images, strict=True)
    }
