"""Average precision of COCO (Lin et al., ECCV 2014), by hotcoco, whose numbers equal those of pycocotools."""

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from hotcoco import COCO, COCOeval

from phalanx.families.detection.metric.base import BoxMetric

Floats = npt.NDArray[np.float64]

AREAS = ('all', 'small', 'medium', 'large')  # up to 32 x 32 pixels, up to 96 x 96, above
MOST = 100  # detections that count per image and class


class CocoAp(BoxMetric):
    """mean_ap, ap50, ap75: average precision over IoU thresholds 0.5, 0.55, .. 0.95 and classes; crowds are ignore regions.

    Each image counts with its detections of highest score, up to 100 per class.
    """

    names = ('mean_ap', 'ap50', 'ap75')
    tie_breakers = ('ap50',)
    iou = 0.5

    def compute(self) -> dict[str, float]:
        """mean_ap; ap50, ap75 at one threshold; ar100, the recall that 100 detections reach; ap_small .. for sizes that occur.

        NaN without any object that counts.
        """
        precision, recall = self._values
        # Indices of the last axis are areas (0: all), of the first one IoU thresholds (0: 0.5, 5: 0.75).
        values = {
            'mean_ap': precision[..., 0],
            'ap50': precision[0, ..., 0],
            'ap75': precision[5, ..., 0],
            'ar100': recall[..., 0],
        }
        sizes = {f'ap_{area}': _mean(precision[..., place]) for place, area in enumerate(AREAS) if place}
        means = {name: _mean(value) for name, value in values.items()}
        return {name: math.nan if value is None else value for name, value in means.items()} | {
            name: value for name, value in sizes.items() if value is not None
        }

    def table(self) -> list[dict[str, str | float]]:
        precision, recall = self._values
        counts = np.bincount(
            np.concatenate([np.zeros(0, np.int64), *(truth.classes[~truth.ignored] for _, truth in self.images.values())]),
            minlength=len(self.class_names),
        )
        rows: list[dict[str, str | float]] = []
        for label, name in enumerate(self.class_names):
            values = {
                'ap': _mean(precision[:, :, label, 0]),
                'ap50': _mean(precision[0, :, label, 0]),
                'ar100': _mean(recall[:, label, 0]),
            }
            cells = {key: '-' if value is None else value for key, value in values.items()}
            rows.append({'class': name, **cells, 'objects': int(counts[label])})
        return rows

    def curves(self) -> dict[str, list[float]]:
        at_50 = self._values[0][0, :, :, 0]  # precision [R, K] at the first threshold
        return {name: at_50[:, label].tolist() for label, name in enumerate(self.class_names) if at_50[0, label] >= 0}

    @cached_property  # takes seconds on many images
    def _values(self) -> tuple[Floats, Floats]:
        """Precision [10 thresholds, 101 recalls, K, 4 areas] and recall [10, K, 4]; -1 where there is no object."""
        truth = COCO(
            {
                'images': [{'id': index} for index in self.images],
                'categories': [{'id': label, 'name': name} for label, name in enumerate(self.class_names)],
                'annotations': self._annotations(),
            }
        )
        evaluation = COCOeval(truth, truth.load_res(self._detections()), 'bbox')
        evaluation.params.max_dets = [MOST]
        evaluation.evaluate()
        evaluation.accumulate()
        assert evaluation.eval is not None
        return evaluation.eval['precision'][..., -1], evaluation.eval['recall'][..., -1]

    def _annotations(self) -> list[dict[str, Any]]:
        rows = ((index, *row) for index, (_, truth) in self.images.items() for row in truth.rows())
        return [
            {
                'id': number,
                'image_id': index,
                'category_id': label,
                'bbox': [x0, y0, x1 - x0, y1 - y0],
                'area': area,
                'iscrowd': int(ignored),
            }
            for number, (index, (x0, y0, x1, y1), label, ignored, area) in enumerate(rows, 1)  # 0 would mean: not matched
        ]

    def _detections(self) -> Floats:
        """[N, 7]: image, box as x, y, width and height, score, class."""
        rows = [np.zeros((0, 7))]
        for index, (detections, _) in self.images.items():
            images, boxes = np.full(len(detections), index), detections.boxes.astype(np.float64)
            corners, sides = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]
            rows.append(np.column_stack((images, corners, sides, detections.scores, detections.classes)))
        return np.concatenate(rows)


def _mean(values: Floats) -> float | None:
    """Mean of the values that are not -1; None if there are none."""
    valid = values[values > -1]
    return float(valid.mean()) if valid.size else None
