"""Matching of detections to true objects, confusion matrix, grades, and precision-recall curves."""

from collections.abc import Iterable, Mapping, Sequence

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


def confusion(images: Iterable[tuple[Detections, Objects]], num_classes: int) -> Integers:
    """Confusion matrix [K + 1, K + 1] of true classes (rows) and detected ones (columns); the last of each is background.

    Detections of ignored objects do not count.
    """
    counts = np.zeros((num_classes + 1, num_classes + 1), np.int64)
    for detections, truth in images:
        classes, pairs = match_objects(detections, truth)
        # Unless matched, an object was predicted as background and a detection has no object.
        predicted, is_unmatched = np.full(len(truth), num_classes), np.ones(len(classes), np.bool_)
        for target, number in pairs:
            predicted[target], is_unmatched[number] = classes[number], False
        counted = ~truth.ignored
        np.add.at(counts, (truth.classes[counted], predicted[counted]), 1)
        counts[num_classes] += np.bincount(classes[is_unmatched], minlength=num_classes + 1)
    return counts


def grade(detections: Detections, truth: Objects) -> Grade | None:
    """Grade of an image by its number of mistakes, counted as in `confusion`; None without mistakes."""
    classes, pairs = match_objects(detections, truth)
    matches = [(target, number) for target, number in pairs if not truth.ignored[target]]
    misclassified = sum(truth.classes[target] != classes[number] for target, number in matches)
    missed, extra = int((~truth.ignored).sum()) - len(matches), len(classes) - len(pairs)
    if not (mistakes := missed + misclassified + extra):
        return None
    return Grade(-float(mistakes), f'{missed} missed, {misclassified} of a wrong class, {extra} without an object')


def match_objects(detections: Detections, truth: Objects) -> tuple[Integers, list[tuple[int, int]]]:
    """Match detections from MIN_SCORE to true objects of any class: their classes, and pairs (object, detection)."""
    confident = detections.scores >= MIN_SCORE
    overlaps = pairwise_iou(torch.from_numpy(truth.boxes), torch.from_numpy(detections.boxes[confident]))
    return detections.classes[confident], match(overlaps.numpy(), MIN_IOU)


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
