"""Images to boxes. Shapes: A anchors, K classes, n candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.runtime.family import Family
from phalanx.runtime.prepare import INTERPOLATIONS, Floats, Image, Size, normalise, pad_to_multiple, resize_factors, size_of
from phalanx.runtime.results import Found
from phalanx.runtime.session import ArtifactError


@dataclass(frozen=True)
class Detections:
    """Detections of one image by falling score; boxes are not clipped to the image."""

    boxes: Floats  # [n, 4] xyxy in pixels of the image as it was read
    scores: Floats  # [n] 0 to 1
    classes: npt.NDArray[np.int64]  # [n]

    def __len__(self) -> int:
        return len(self.boxes)

    def named(self, names: Sequence[str], size: tuple[int, ...]) -> list[Found]:
        """Add class names and clip boxes to the image of `size` (height, width, ...)."""
        H, W = size[:2]
        boxes = self.boxes.clip(0, np.array([W, H, W, H], np.float32))
        rows = zip(self.classes.tolist(), self.scores.tolist(), boxes.tolist(), strict=True)
        return [Found(names[label], label, score, tuple(box)) for label, score, box in rows]


class Detection(Family):
    """Pre- and post-processing of a detection network."""

    def prepare(self, image: Image) -> Floats:
        for transform in self.preparation['transforms']:
            x, y = factors(image.shape[:2], transform)
            if (x, y) != (1, 1):
                interpolation = INTERPOLATIONS[transform['interpolation']]
                image = cv2.resize(image, None, fx=x, fy=y, interpolation=interpolation).astype(np.uint8, copy=False)
        return normalise(pad_to_multiple(image, self.preparation['multiple_of'], self.preparation['fill']), self.preparation)

    def prediction(self, outputs: Mapping[str, Any], image: Image) -> Detections:
        """Detections after non-maximum suppression."""
        if 'detections' in outputs:  # NMS is part of the graph
            rows = outputs['detections']
            boxes, scores, classes = rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64)
        else:
            boxes, scores, classes = suppress_boxes(outputs['boxes'], outputs['scores'], **self.reading['nms'])
        x, y = self._scale(image)
        return Detections(boxes * np.array([x, y, x, y], np.float32), scores, classes)

    def result(self, prediction: Detections, image: Image) -> list[Found]:
        return prediction.named(self.reading['classes'], image.shape)

    def _scale(self, image: Image) -> tuple[float, float]:
        """Image pixels per input pixel, along x and y."""
        H, W = size = image.shape[:2]
        width, height = float(W), float(H)
        # Exact factors, while the sizes that later transforms see are rounded to pixels.
        for transform in self.preparation['transforms']:
            x, y = factors(size, transform)
            width, height = width * x, height * y
            size = round(size[0] * y), round(size[1] * x)
        return W / width, H / height


def factors(size: Size, transform: Mapping[str, Any]) -> tuple[float, float]:
    """Factors by which a transform of the guide scales width and height of `size`. Raises ArtifactError."""
    if transform['name'] != 'Resize':
        raise ArtifactError(f'images went through {transform["name"]} in evaluation, which the runtime does not know')
    x, y = resize_factors(size, size_of(transform, 'target_size'), keep_ratio=transform['keep_ratio'])
    return max(x, 1 / size[1]), max(y, 1 / size[0])


def suppress_boxes(
    boxes: Floats, scores: Floats, *, score_threshold: float, nms_threshold: float, pre_top_k: int, keep_top_k: int
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Non-maximum suppression per class of `boxes` [A, 4] with `scores` [A, K], as in `multiclass_nms`.

    Returns boxes [n, 4], scores [n] and classes [n], by falling score.
    """
    detections = []
    # Candidates per class: the best `pre_top_k` above the threshold, then greedy NMS.
    for label in range(scores.shape[1]):
        above = np.flatnonzero(scores[:, label] > score_threshold)
        order = above[np.argsort(-scores[above, label], kind='stable')][:pre_top_k]
        if nms_threshold < 1:
            selected = order[nms_indices(boxes[order].astype(np.float64), nms_threshold)]
        else:  # no IoU is above 1
            selected = order[:keep_top_k]
        detections += [(-float(scores[anchor, label]), label, int(anchor)) for anchor in selected]
    # Over all classes, the best `keep_top_k`; sorting is stable, so ties keep the order of classes.
    detections = sorted(detections, key=lambda row: row[0])[:keep_top_k]
    labels = np.array([label for _, label, _ in detections], np.int64)
    anchors = np.array([anchor for _, _, anchor in detections], np.int64)
    return boxes[anchors], scores[anchors, labels], labels


def nms_indices(boxes: npt.NDArray[np.float64], threshold: float) -> list[int]:
    """Indices that greedy NMS selects from `boxes` [n, 4], sorted by falling score: no two have an IoU above `threshold`."""
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    remaining, selected = np.arange(len(boxes)), []
    while len(remaining):
        first, rest = remaining[0], remaining[1:]
        selected.append(int(first))
        sides = np.minimum(boxes[rest, 2:], boxes[first, 2:]) - np.maximum(boxes[rest, :2], boxes[first, :2])
        overlap = sides.clip(0).prod(1)
        with np.errstate(invalid='ignore'):  # two boxes without area: 0 / 0 = NaN, which is not above
            iou = overlap / (areas[rest] + areas[first] - overlap)
        remaining = rest[~(iou > threshold)]
    return selected
