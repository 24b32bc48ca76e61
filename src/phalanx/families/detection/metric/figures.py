"""Which classes are taken for which, and what the report draws of a detection metric."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from phalanx.data.boxes import pairwise_iou
from phalanx.families.detection.data.source import Objects
from phalanx.families.detection.metric.detections import Detections
from phalanx.families.task import Curves, Figure, Grade, Matrix

SURE, OVERLAP = 0.25, 0.5  # what counts as found: the least score, and the least IoU with an object


def confusion(
    images: Iterable[tuple[Detections, Objects]], num_classes: int, *, iou: float = OVERLAP, score: float = SURE
) -> npt.NDArray[np.int64]:
    """[K + 1, K + 1] how often an object of the row's class was found as the column's; the last of each: nothing there.

    Detections from `score` on are matched with objects whatever their class, pairs of the highest IoU first, from `iou` on.
    What is found at an ignored object does not count.
    """
    counts = np.zeros((num_classes + 1, num_classes + 1), np.int64)
    for found, truth in images:
        sure = found.scores >= score
        boxes, classes = found.boxes[sure], found.classes[sure]
        pairs = match(pairwise_iou(torch.from_numpy(truth.boxes), torch.from_numpy(boxes)).numpy(), iou)
        there, seen = np.full(len(truth), num_classes), np.full(len(boxes), num_classes)
        for target, number in pairs:
            there[target], seen[number] = classes[number], truth.classes[target]
        counted = ~truth.ignored
        np.add.at(counts, (truth.classes[counted], there[counted]), 1)
        nothing = np.setdiff1d(np.arange(len(boxes)), [number for _, number in pairs])
        counts[num_classes] += np.bincount(classes[nothing], minlength=num_classes + 1)
    return counts


def grade(found: Detections, truth: Objects) -> Grade | None:
    """That of an image by the number of mistakes, counted as `confusion` does."""
    sure = found.scores >= SURE
    boxes, classes = found.boxes[sure], found.classes[sure]
    pairs = match(pairwise_iou(torch.from_numpy(truth.boxes), torch.from_numpy(boxes)).numpy(), OVERLAP)
    matches = [(target, number) for target, number in pairs if not truth.ignored[target]]
    wrong = sum(truth.classes[target] != classes[number] for target, number in matches)
    missed, beyond = int((~truth.ignored).sum()) - len(matches), len(boxes) - len(pairs)
    if not (mistakes := missed + wrong + beyond):
        return None
    return Grade(-float(mistakes), f'{missed} missed, {wrong} of a wrong class, {beyond} found where nothing is')


def match(overlaps: npt.NDArray[np.float32], threshold: float) -> list[tuple[int, int]]:  # [N, n]
    """Pairs (row, column) whose overlap reaches the threshold, the highest first, each row and column once."""
    rows, columns = np.nonzero(overlaps >= threshold)
    pairs, rows_left, columns_left = [], set(rows.tolist()), set(columns.tolist())
    for place in np.argsort(-overlaps[rows, columns], kind='stable'):
        row, column = int(rows[place]), int(columns[place])
        if row in rows_left and column in columns_left:
            pairs.append((row, column))
            rows_left.remove(row)
            columns_left.remove(column)
    return pairs


WORST = 5  # classes that have a curve of their own when there are more
RECALLS = np.linspace(0, 1, 101)
NOTHING = 'nothing'


def figures(
    precision: Mapping[str, Sequence[float]],
    images: Iterable[tuple[Detections, Objects]],
    class_names: Sequence[str],
    iou: float,
) -> list[Figure]:
    """Precision over recall, and what is taken for what; `precision` of each class at RECALLS."""
    counts = confusion(images, len(class_names), iou=OVERLAP)
    names = [*class_names, NOTHING]
    taken = Matrix(f'Classes taken for one another, from a score of {SURE:g} and an IoU of {OVERLAP:g}', names, counts.tolist())
    return [*([precision_over_recall(precision, iou)] if precision else []), taken]


def precision_over_recall(precision: Mapping[str, Sequence[float]], iou: float) -> Curves:
    """The mean of all classes and the worst of them."""
    mean = np.mean(list(precision.values()), axis=0)
    worst = sorted(precision, key=lambda name: sum(precision[name]))[:WORST]
    chosen = {'mean of the classes': mean, **{name: precision[name] for name in precision if name in worst}}
    which = '' if len(worst) == len(precision) else f', all classes and the {WORST} worst'
    lines = {name: [(float(x), float(y)) for x, y in zip(RECALLS, values, strict=True)] for name, values in chosen.items()}
    return Curves(f'Precision at an IoU of {iou:g}{which}', 'recall', 'precision', lines)
