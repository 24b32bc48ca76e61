"""Matching of detections to true objects, confusion matrix, grades, and precision-recall curves."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from phalanx.data.boxes import pairwise_iou
from phalanx.families.detection.data.source import Objects
from phalanx.families.figures import Curves, Grade
from phalanx.runtime.detection import Detections

Integers = npt.NDArray[np.int64]

MIN_SCORE, MIN_IOU = 0.25, 0.5  # of a match: minimum score, and minimum IoU with the object
WORST = 5  # number of worst classes with a curve of their own
RECALLS = np.linspace(0, 1, 101)


class Comparison(NamedTuple):
    """Comparison of the detections in an image with its objects, of any class."""

    cells: Integers  # [N] cell of the confusion matrix, row by row, of each object and of each detection without one
    grade: Grade | None  # by the number of mistakes; None without mistakes


def compare(detections: Detections, truth: Objects, num_classes: int) -> Comparison:
    """Match detections from MIN_SCORE to true objects of any class. Ignored objects and their detections do not count."""
    confident = detections.scores >= MIN_SCORE
    classes = detections.classes[confident]
    overlaps = pairwise_iou(torch.from_numpy(truth.boxes), torch.from_numpy(detections.boxes[confident]))
    # Unless matched, an object was predicted as background and a detection has no object.
    predicted, is_unmatched = np.full(len(truth), num_classes), np.ones(len(classes), np.bool_)
    for target, number in match(overlaps.numpy(), MIN_IOU):
        predicted[target], is_unmatched[number] = classes[number], False
    actual, predicted, extra = truth.classes[~truth.ignored], predicted[~truth.ignored], classes[is_unmatched]
    cells = np.concatenate([actual * (num_classes + 1) + predicted, num_classes * (num_classes + 1) + extra])
    missed = int((predicted == num_classes).sum())
    misclassified = int((predicted != actual).sum()) - missed
    if not (mistakes := missed + misclassified + len(extra)):
        return Comparison(cells, None)
    reason = f'{missed} missed, {misclassified} of a wrong class, {len(extra)} without an object'
    return Comparison(cells, Grade(-float(mistakes), reason))


def confusion(cells: Iterable[Integers], num_classes: int) -> Integers:
    """Confusion matrix [K + 1, K + 1] of true classes (rows) and detected ones (columns); the last of each is background."""
    side = num_classes + 1
    return np.bincount(np.concatenate([np.zeros(0, np.int64), *cells]), minlength=side**2).reshape(side, side)


def match(overlaps: npt.NDArray[np.float32], threshold: float) -> list[tuple[int, int]]:  # [N, n]
    """Pairs (row, column) whose overlap reaches the threshold, the highest first, each row and column at most once."""
    # Greedy, best overlap first.
    rows, columns = np.nonzero(overlaps >= threshold)
    pairs, rows_left, columns_left = [], set(rows.tolist()), set(columns.tolist())
    for place in np.argsort(-overlaps[rows, columns], kind='stable'):
        row, column = int(rows[place]), int(columns[place])
        if row in rows_left and column in columns_left:
            pairs.append((row, column))
            rows_left.remove(row)
            columns_left.remove(column)
    return pairs


def precision_recall_curves(precision: Mapping[str, Sequence[float]], iou: float) -> Curves:
    """Curves of the class mean and of the worst classes; `precision` of each class at RECALLS."""
    mean = np.mean(list(precision.values()), axis=0)
    worst = sorted(precision, key=lambda name: sum(precision[name]))[:WORST]
    curves = {'mean of the classes': mean, **{name: precision[name] for name in precision if name in worst}}
    subset = '' if len(worst) == len(precision) else f', all classes and the {WORST} worst'
    lines = {name: [(float(x), float(y)) for x, y in zip(RECALLS, values, strict=True)] for name, values in curves.items()}
    return Curves(f'Precision at an IoU of {iou:g}{subset}', 'recall', 'precision', lines)
