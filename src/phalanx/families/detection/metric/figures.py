"""What the report draws of a detection metric."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from phalanx.families.detection.data.source import Objects
from phalanx.families.detection.metric.confusion import OVERLAP, SURE, confusion
from phalanx.families.detection.metric.detections import Detections
from phalanx.families.task import Curves, Figure, Matrix

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
