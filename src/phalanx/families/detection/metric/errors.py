"""Errors of a detector by cause, and the AP that each costs, as in TIDE (Bolya et al., ECCV 2020) and its package `tidecv`.

Shapes: n detections and N objects of an image, K classes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phalanx.families.detection.data.source import Boxes, Objects
from phalanx.families.figures import Table
from phalanx.runtime.detection import Detections

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FOREGROUND, BACKGROUND = 0.5, 0.1  # IoU with an object from which a box is right, and up to which it is of the background
MOST = 100  # detections per image
RIGHT = -1
CAUSES = {
    'classification': 'a right box of another class',
    'localisation': 'a box of the right class with an IoU from 0.1 to 0.5',
    'both': 'a box of another class with an IoU from 0.1 to 0.5',
    'duplicate': 'another box of an object that is found already',
    'background': 'a box where no object is',
    'missed': 'an object without any of the boxes above',
}
CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, NOTHING = range(5)


class Causes(NamedTuple):
    """Detections of all images, without those in ignore regions, by falling score; and objects."""

    classes: Integers  # of each detection
    causes: Integers  # place in CAUSES, or RIGHT
    correct: Integers  # class that the detection would be right for without its error; -1: for none
    missed: Integers  # [K] objects that no change of one error would find
    objects: Integers  # [K]


def explain_images(images: Mapping[int, tuple[Detections, Objects]]) -> tuple[Floats, Integers]:
    """Match the detections of images, by number, to their objects and find the cause of each error.

    Returns rows of detections [n, 5] (image, score, class, cause, class that it would be right for) and of objects [N, 2]
    (class, 1 if missed), which may be gathered from several ranks.
    """
    rows, objects = [np.zeros((0, 5))], [np.zeros((0, 2), np.int64)]
    for index, (detections, truth) in images.items():
        counted, ignored = truth.at(~truth.ignored), truth.at(truth.ignored)
        best = np.argsort(-detections.scores, kind='stable')[:MOST]
        boxes, classes = detections.boxes[best], detections.classes[best]
        causes, correct, found = _explain(boxes, classes, counted)
        counts = (causes == RIGHT) | ~_in_ignored(boxes, classes, ignored)
        rows.append(np.column_stack([np.full(len(best), index), detections.scores[best], classes, causes, correct])[counts])
        objects.append(np.column_stack([counted.classes, ~found]))
    return np.concatenate(rows), np.concatenate(objects)


def sum_up(rows: Floats, objects: Integers, num_classes: int) -> Causes:
    """Put the rows of `explain_images` in an order that does not depend on the number of ranks."""
    classes, causes, correct = rows[np.lexsort([rows[:, 0], -rows[:, 1]])][:, 2:].T.astype(np.int64)
    of_objects, is_missed = objects.T
    per_class = (np.bincount(labels, minlength=num_classes) for labels in (of_objects[is_missed > 0], of_objects))
    return Causes(classes, causes, correct, *per_class)


def _explain(boxes: Boxes, classes: Integers, truth: Objects) -> tuple[Integers, Integers, Mask]:
    """Cause [n] of each detection, by falling score; the class [n] it would be right for; and the objects [N] not missed."""
    if not len(truth):
        return np.full(len(boxes), NOTHING), np.full(len(boxes), -1), np.zeros(0, np.bool_)
    overlaps = _overlaps(boxes, truth.boxes)
    areas = [(each[:, 2:].astype(np.float64) - each[:, :2]).prod(1) for each in (boxes, truth.boxes)]
    iou = overlaps / (areas[0][:, None] + areas[1] - overlaps)
    of_class, of_other = (iou * mask for mask in (classes[:, None] == truth.classes, classes[:, None] != truth.classes))
    # Greedy matching: each detection takes the object of highest IoU that is left.
    left, is_right = of_class.copy(), np.zeros(len(boxes), np.bool_)
    is_found = np.zeros(len(truth), np.bool_)
    for number in np.flatnonzero(of_class.max(1) >= FOREGROUND):
        target = left[number].argmax()
        if left[number, target] >= FOREGROUND:
            is_right[number], is_found[target], left[:, target] = True, True, 0
    nearest, is_near = of_class.max(1), of_other.max(1) >= FOREGROUND
    conditions = [
        is_right,
        (nearest >= BACKGROUND) & (nearest <= FOREGROUND),
        is_near,
        (of_class * is_found).max(1) >= FOREGROUND,
        iou.max(1) <= BACKGROUND,
    ]
    causes = np.select(conditions, [RIGHT, LOCALISATION, CLASSIFICATION, DUPLICATE, NOTHING], BOTH)
    # Without its error, the most probable box of an object that no other has found would be right.
    targets = np.where(causes == LOCALISATION, of_class.argmax(1), of_other.argmax(1))
    repairable = np.isin(causes, (LOCALISATION, CLASSIFICATION)) & ~is_found[targets]
    correct, is_usable = np.full(len(boxes), -1), is_found.copy()
    for number in np.flatnonzero(repairable):
        if not is_usable[targets[number]]:
            correct[number], is_usable[targets[number]] = truth.classes[targets[number]], True
    return causes, correct, is_usable


def _in_ignored(boxes: Boxes, classes: Integers, ignored: Objects) -> Mask:
    """Mask [n] of detections of which more than half lies in an ignored object of their class."""
    areas = (boxes[:, 2:].astype(np.float64) - boxes[:, :2]).prod(1)
    lies_within = _overlaps(boxes, ignored.boxes) > FOREGROUND * areas[:, None]
    return np.asarray((lies_within & (classes[:, None] == ignored.classes)).any(1), np.bool_)


def _overlaps(first: Boxes, second: Boxes) -> Floats:
    """Area of each intersection [n, N]."""
    a, b = first[:, None].astype(np.float64), second[None].astype(np.float64)
    area: Floats = (np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])).clip(0).prod(2)
    return area


def costs(found: Causes) -> list[float]:
    """AP at an IoU of 0.5 that would be gained without the errors of each of CAUSES, 0 to 1."""
    before = _mean_ap(found, found.causes == RIGHT, found.classes, found.objects)
    gains = []
    for cause in range(BOTH):
        # The best box of each object becomes right, the others disappear.
        is_wrong = found.causes == cause
        stays, right = ~is_wrong | (found.correct >= 0), (found.causes == RIGHT) | (is_wrong & (found.correct >= 0))
        classes = np.where(is_wrong, found.correct, found.classes)
        gains.append(_mean_ap(found, right, classes, found.objects, stays))
    gains += [
        _mean_ap(found, found.causes == RIGHT, found.classes, found.objects, found.causes != cause)
        for cause in (BOTH, DUPLICATE, NOTHING)
    ]
    gains.append(_mean_ap(found, found.causes == RIGHT, found.classes, found.objects - found.missed))
    return [max(gain - before, 0.0) for gain in gains]


def _mean_ap(found: Causes, right: Mask, classes: Integers, objects: Integers, stays: Mask | None = None) -> float:
    """Mean over classes of the AP of detections that stay, of which some are right."""
    values = []
    for label in np.flatnonzero(found.objects):
        own = classes == label if stays is None else (classes == label) & stays
        if objects[label] or own.any():
            values.append(_ap(right[own], int(objects[label])))
    return float(np.mean(values)) if values else 0.0


def _ap(right: Mask, objects: int) -> float:
    """Mean precision at recall 0, 0.01, .. 1 of detections by falling score."""
    if not objects:
        return 0.0
    hits = right.cumsum()
    precision = np.append(np.maximum.accumulate((hits / np.arange(1, len(hits) + 1))[::-1])[::-1], 0)
    return float(precision[np.searchsorted(hits / objects, np.arange(101) / 100)].mean())


def errors_by_cause(found: Causes) -> Table:
    """Table of the number of errors by cause, and of the AP that each costs."""
    counts = [*np.bincount(found.causes[found.causes != RIGHT], minlength=NOTHING + 1), found.missed.sum()]
    rows: list[dict[str, str | float]] = [
        {'cause': name, 'meaning': meaning, 'ap50 lost': cost, 'errors': int(count)}
        for (name, meaning), cost, count in zip(CAUSES.items(), costs(found), counts, strict=True)
    ]
    return Table('Errors by cause, and the AP50 that is lost by each', rows)
