"""Average precision of Pascal VOC and PaddleDetection (Everingham et al., IJCV 2010)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from phalanx.families.detection.data.source import Boxes, Objects
from phalanx.families.detection.metric.base import BoxMetric
from phalanx.families.detection.metric.matching import RECALLS
from phalanx.runtime.detection import Detections

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Precision and recall of a class for the 1, 2, .. n detections of highest score."""

    precision: Floats  # [n]
    recall: Floats  # [n]
    objects: int


class VocAp(BoxMetric):
    """mean_ap: mean average precision at the IoU threshold `iou`; difficult objects and their detections do not count.

    `points`: the mean of the best precision at recall 0, 0.1, .. 1 or better (11, VOC until 2009), or the area under the
    curve (all); computed as in PaddleDetection, without the monotonic envelope that the tool of VOC 2010 takes first.
    """

    names = ('mean_ap',)
    tie_breakers = ()

    def __init__(self, class_names: tuple[str, ...], *, iou: float = 0.5, points: Literal['11', 'all'] = '11') -> None:
        super().__init__(class_names)
        if not 0 < iou < 1:
            raise ValueError(f'iou must lie between 0 and 1, got {iou}')
        self.iou = iou
        self.average = eleven_points if points == '11' else area_under_curve

    def compute(self) -> dict[str, float]:
        values = [self.average(curve) for curve in self._values if curve.objects]
        return {'mean_ap': float(np.mean(values)) if values else math.nan}

    def table(self) -> list[dict[str, str | float]]:
        rows: list[dict[str, str | float]] = []
        for name, curve in zip(self.class_names, self._values, strict=True):
            ap = self.average(curve) if curve.objects else '-'
            recall = float(curve.recall[-1]) if len(curve.recall) else 0.0
            rows.append({'class': name, 'ap': ap, 'recall': recall if curve.objects else '-', 'objects': curve.objects})
        return rows

    def curves(self) -> Mapping[str, list[float]]:
        of_classes = zip(self.class_names, self._values, strict=True)
        return {name: precision_at_recalls(curve, RECALLS) for name, curve in of_classes if curve.objects}

    @cached_property
    def _values(self) -> list[Curve]:
        return [class_curve(self.images.values(), label, self.iou) for label in range(len(self.class_names))]


def class_curve(pairs: Iterable[tuple[Detections, Objects]], label: int, threshold: float) -> Curve:
    """Curve of class `label` over images (detections, true objects)."""
    scores, hits, num_objects = [np.zeros(0)], [np.zeros(0, np.bool_)], 0
    for detections, truth in pairs:
        truth = truth.at(truth.classes == label)
        of_class = detections.classes == label
        counts, hit = match_voc(detections.boxes[of_class], truth, threshold)
        scores.append(detections.scores[of_class][counts])
        hits.append(hit[counts])
        num_objects += int((~truth.ignored).sum())
    # Rank the detections of all images by score: each point of the curve adds the next one.
    order = np.argsort(-np.concatenate(scores), kind='stable')
    right = np.concatenate(hits)[order].cumsum()
    return Curve(right / np.arange(1, len(right) + 1), right / max(num_objects, 1), num_objects)


def match_voc(boxes: Boxes, truth: Objects, threshold: float) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Masks of the `boxes` [n, 4] (highest score first) that count and that are right; for one class and image.

    A box is matched to the object of highest IoU only. A second box of that object is
    wrong; a box of a difficult object does not count.
    """
    counts, right = np.ones(len(boxes), np.bool_), np.zeros(len(boxes), np.bool_)
    if not len(truth) or not len(boxes):
        return counts, right
    overlaps = inclusive_iou(boxes, truth.boxes)  # [n, N]
    nearest = overlaps.argmax(1)
    matched = set()
    for number in np.flatnonzero(overlaps.max(1) > threshold):
        target = nearest[number]
        counts[number] = not truth.ignored[target]
        right[number] = target not in matched
        matched.add(target)
    return counts, right


def inclusive_iou(a: Boxes, b: Boxes) -> Floats:  # [n, 4] and [N, 4] -> [n, N]
    """Intersection over union where the last column and row belong to a box, as VOC counts: (0, 0, 9, 9) is 10 x 10 pixels."""
    first, second = a[:, None].astype(np.float64), b[None].astype(np.float64)
    # Pixels from the first to the last column inclusive: + 1.
    sides = np.minimum(first[..., 2:], second[..., 2:]) - np.maximum(first[..., :2], second[..., :2])
    overlap = np.where((sides > 0).all(-1), (sides + 1).prod(-1), 0)
    areas = (first[..., 2:] - first[..., :2] + 1).prod(-1) + (second[..., 2:] - second[..., :2] + 1).prod(-1)
    result: Floats = overlap / (areas - overlap)
    return result


def precision_at_recalls(curve: Curve, recalls: Iterable[float]) -> list[float]:
    """Best precision at each of `recalls` or higher."""
    return [float(curve.precision[curve.recall >= recall].max(initial=0)) for recall in recalls]


def eleven_points(curve: Curve) -> float:
    return float(np.mean(precision_at_recalls(curve, (tenth / 10 for tenth in range(11)))))


def area_under_curve(curve: Curve) -> float:
    return float((curve.precision * np.diff(curve.recall, prepend=0)).sum())
