"""Images to boxes. Shapes: A anchors, K classes, n candidates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.runtime.family import Family
from phalanx.runtime.prepare import (
    Floats,
    Image,
    Size,
    check_input_size,
    normalise,
    pad_to_multiple,
    pad_with_zeros,
    resize_factors,
    resize_maps,
    scale,
    scaled_size,
    size_of,
)
from phalanx.runtime.results import Found
from phalanx.runtime.session import ArtifactError, Run
from phalanx.runtime.views import flips, window_cores, window_sizes

WHOLE = {'window': None, 'window_stride': None, 'scales': [1.0], 'flip_horizontal': False}


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
                image = scale(image, x, y, transform['interpolation'])
        return normalise(pad_to_multiple(image, self.preparation['multiple_of'], self.preparation['fill']), self.preparation)

    def outputs(self, run: Run, images: Floats) -> dict[str, Any]:
        """Boxes in pixels of the input and scores; with windows, scales or a flip (`Inference`), those of all views."""
        inference = self.reading.get('inference', WHOLE)  # files of before have none
        turned = flips(horizontal=inference['flip_horizontal'], vertical=False)
        views = list(product(inference['scales'], turned))
        if views == [(1.0, ())] and window_sizes(inference) is None:
            return run(images)
        parts = [part for scale, flip in views for part in self._view(run, images, scale, flip)]
        return {name: np.concatenate([part[name] for part in parts], 1) for name in ('boxes', 'scores')}

    def _view(self, run: Run, images: Floats, scale: float, flip: tuple[int, ...]) -> Iterator[dict[str, Floats]]:
        """Yield boxes and scores of each window of one scale and flip, both undone."""
        H, W = images.shape[2:]
        h, w = scaled_size((H, W), scale)
        check_input_size(h, w)
        step = self.preparation['multiple_of']
        # The size of the input stays a multiple of what the network takes.
        padded = [-(-side // step) * step for side in (h, w)]
        scaled = np.flip(np.stack([resize_maps(image, h, w) for image in images]), flip)
        for boxes, scores in self._windows(run, np.stack([pad_with_zeros(image, *padded) for image in scaled])):
            x0, y0, x1, y1 = np.moveaxis(boxes, 2, 0)
            x0, x1 = (w - x1, w - x0) if flip else (x0, x1)
            undone = np.stack(
                [x0 * np.float32(W / w), y0 * np.float32(H / h), x1 * np.float32(W / w), y1 * np.float32(H / h)], 2
            )
            yield {'boxes': undone, 'scores': scores}

    def _windows(self, run: Run, images: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Yield boxes in pixels of `images` and scores of each window; boxes that count in another one have scores of 0."""
        if (sizes := window_sizes(self.reading.get('inference', WHOLE))) is None:
            outputs = run(images)
            yield outputs['boxes'], outputs['scores']
            return
        (height, width), (down, across) = sizes
        rows, columns = window_cores(images.shape[2], height, down), window_cores(images.shape[3], width, across)
        for (top, least_y, most_y), (left, least_x, most_x) in product(rows, columns):
            outputs = run(np.ascontiguousarray(images[:, :, top : top + height, left : left + width]))
            boxes = outputs['boxes'] + np.array([left, top, left, top], np.float32)
            x, y = np.moveaxis((boxes[..., :2] + boxes[..., 2:]) / 2, 2, 0)
            counts = (least_x <= x) & (x < most_x) & (least_y <= y) & (y < most_y)
            yield boxes, outputs['scores'] * counts[..., None]

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
