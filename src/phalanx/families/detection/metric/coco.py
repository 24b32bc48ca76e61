"""Average precision as COCO has it (Lin et al., ECCV 2014), by hotcoco, whose numbers are those of pycocotools."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hotcoco import COCO, COCOeval

from phalanx.families.detection.data.source import Boxes
from phalanx.families.detection.metric.detections import Detections
from phalanx.families.detection.metric.figures import figures
from phalanx.families.detection.metric.gathered import Gathered, Labelled
from phalanx.families.task import Figure, Grade

Floats = npt.NDArray[np.float64]

AREAS = ('all', 'small', 'medium', 'large')  # up to 32 x 32 pixels, up to 96 x 96, above
MOST = 100  # detections of an image that count for a class


class CocoAp(Gathered):
    """mean_ap, ap50, ap75: average precision over IoU thresholds 0.5, 0.55, .. 0.95 and classes; crowds are ignore regions.

    An image is evaluated as a whole by the detections of highest score, up to 100 of each class.
    """

    names = ('mean_ap', 'ap50', 'ap75')
    tie_breakers = ('ap50',)

    def __init__(self, class_names: tuple[str, ...]) -> None:
        super().__init__()
        self.class_names = class_names
        self._evaluated: tuple[Floats, Floats] | None = None

    def update(self, prediction: Sequence[Detections], batch: Labelled) -> list[Grade | None]:
        self._evaluated = None
        return super().update(prediction, batch)

    def gather(self) -> None:
        super().gather()
        self._evaluated = None

    def compute(self) -> dict[str, float]:
        """mean_ap; ap50, ap75 at one threshold; ar100, the recall that 100 detections reach; ap_small .. for sizes seen."""
        precision, recall = self._values()
        always = {
            'mean_ap': precision[..., 0],
            'ap50': precision[0, ..., 0],
            'ap75': precision[5, ..., 0],
            'ar100': recall[..., 0],
        }
        sizes = {f'ap_{area}': _mean(precision[..., place]) for place, area in enumerate(AREAS) if place}
        return {name: _mean(values) or 0.0 for name, values in always.items()} | {
            name: value for name, value in sizes.items() if value is not None
        }

    def table(self) -> list[dict[str, str | float]]:
        precision, recall = self._values()
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
            shown = {key: '-' if value is None else value for key, value in values.items()}
            rows.append({'class': name, **shown, 'objects': int(counts[label])})
        return rows

    def curves(self) -> dict[str, list[float]]:
        """The precision of each class at recall 0, 0.01, .. 1 and IoU 0.5; classes that have no object are left out."""
        precision, _ = self._values()
        at_half = precision[0, :, :, 0]  # [R, K]
        return {name: at_half[:, label].tolist() for label, name in enumerate(self.class_names) if at_half[0, label] >= 0}

    def figures(self) -> list[Figure]:
        return figures(self.curves(), self.images.values(), self.class_names, iou=0.5)

    def _values(self) -> tuple[Floats, Floats]:
        """Precision [10 thresholds, 101 recalls, K, 4 areas] and recall [10, K, 4]; -1 where there is no object."""
        if self._evaluated is None:  # takes seconds on many images
            self._evaluated = self._evaluate()
        return self._evaluated

    def _evaluate(self) -> tuple[Floats, Floats]:
        truth = COCO(
            {
                'images': [{'id': index} for index in self.images],
                'categories': [{'id': label, 'name': name} for label, name in enumerate(self.class_names)],
                'annotations': [*self._truth()],
            }
        )
        evaluation = COCOeval(truth, truth.load_res(self._found()), 'bbox')
        evaluation.params.max_dets = [MOST]
        evaluation.evaluate()
        evaluation.accumulate()
        assert evaluation.eval is not None
        return evaluation.eval['precision'][..., -1], evaluation.eval['recall'][..., -1]

    def _truth(self) -> Iterator[dict[str, Any]]:
        number = 0
        for index, (_, truth) in self.images.items():
            boxes = _xywh(truth.boxes).tolist()
            rows = zip(boxes, truth.classes.tolist(), truth.areas.tolist(), truth.ignored.tolist(), strict=True)
            for box, label, area, ignored in rows:
                number += 1  # 0 would mean: not matched
                yield {
                    'id': number,
                    'image_id': index,
                    'category_id': label,
                    'bbox': box,
                    'area': area,
                    'iscrowd': int(ignored),
                }

    def _found(self) -> Floats:
        """[N, 7]: image, box as x, y, width and height, score, class."""
        return np.concatenate(
            [np.zeros((0, 7))]
            + [
                np.column_stack((np.full(len(found), index), _xywh(found.boxes), found.scores, found.classes))
                for index, (found, _) in self.images.items()
            ]
        )


def _xywh(boxes: Boxes) -> Floats:
    exact = boxes.astype(np.float64)
    exact[:, 2:] -= exact[:, :2]
    return exact


def _mean(values: Floats) -> float | None:
    """The mean of what is not -1, None when nothing is."""
    there = values[values > -1]
    return float(there.mean()) if there.size else None
