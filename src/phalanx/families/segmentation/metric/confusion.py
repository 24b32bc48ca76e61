"""Confusion matrix of pixels and the metrics derived from it. Shapes: K classes."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from phalanx.data.image import find_background
from phalanx.families.figures import Figure, Grade, Legend, Matrix
from phalanx.families.segmentation.draw import COLOURS
from phalanx.families.segmentation.labels import VOID
from phalanx.families.task import Labelled
from phalanx.parallel import dist


def count_pairs(predicted: Tensor, labels: Tensor, K: int) -> Tensor:
    """Count the pairs (truth, prediction) of an image, [K * K + 2]; the last two: void pixels, labels without a class.

    Without masks, whose size a device would have to tell the host.
    """
    assert predicted.shape == labels.shape
    rows = labels.long()
    pairs = torch.where(rows < K, rows * K + predicted.long(), K * K + 1)
    pairs = torch.where(rows == VOID, K * K, pairs).flatten()
    return torch.zeros(K * K + 2, dtype=torch.int64, device=labels.device).scatter_add_(0, pairs, torch.ones_like(pairs))


class Confusion:
    """mean_iou, accuracy, kappa and mean_dice from a confusion matrix of pixels; void pixels are ignored.

    A class absent from both truth and predictions is left out of `mean_iou`. In the table and in the other means it has IoU 1,
    and 0 for precision, recall and dice, as in PaddleSeg.
    """

    names = ('mean_iou', 'accuracy', 'kappa', 'mean_dice')
    tie_breakers = ('mean_dice', 'accuracy')

    def __init__(self, class_names: Sequence[str]) -> None:
        self.class_names = tuple(class_names)
        self._counts = torch.zeros(len(self.class_names), len(self.class_names), dtype=torch.int64)  # [K truth, K prediction]

    worst = 'Samples of the lowest mean IoU'

    def update(self, prediction: Sequence[Tensor], batch: Labelled[Tensor]) -> list[Grade | None]:
        """Count one class map [H, W] (integers below K) per image against its labels [H, W]; return a grade per image.

        Raises ValueError if a label is neither void nor one of the classes.
        """
        K = len(self.class_names)
        images = [count_pairs(*image, K) for image in zip(prediction, batch.truths, strict=True)]
        # One copy to the host for the whole batch.
        grades = []
        for image, labels in zip(torch.stack(images).cpu(), batch.truths, strict=True):
            if image[-1]:
                wrong = int(labels[(labels >= K) & (labels != VOID)].max())
                raise ValueError(f'a pixel has label {wrong}; the {K} classes are 0 to {K - 1}, void is {VOID}')
            counts = image[:-2].view(K, K)
            self._counts += counts
            grades.append(self._grade(counts))
        return grades

    def _grade(self, counts: Tensor) -> Grade | None:
        """Grade an image by its own mean IoU, naming its largest confusion; None for a perfect one."""
        hit, predicted, true = _areas(counts)
        if hit.sum() == true.sum():
            return None
        is_present = predicted + true > 0
        iou = _ratio(hit, predicted + true - hit, empty=1)[is_present].mean().item()
        # The most frequent confusion, for the caption of the picture.
        confusions = counts.clone().fill_diagonal_(0)
        share = confusions.max().item() / true.sum().item()
        truth, predicted_as = (self.class_names[number] for number in divmod(int(confusions.argmax()), len(counts)))
        return Grade(iou, f'mean IoU {iou:.2f}; {truth} taken for {predicted_as} on {share:.0%} of the image')

    def join(self, others: Sequence[Self]) -> None:
        """Add the counts of other metrics."""
        self._counts = torch.stack([self._counts, *(other._counts for other in others)]).sum(0)

    def gather(self) -> None:
        """Sum the confusion matrices of all ranks."""
        self._counts = dist.sum_over_ranks(self._counts)

    def compute(self) -> dict[str, float]:
        """Return mean_iou, accuracy (share of correct pixels), kappa (Cohen's), mean_dice and mean_iou_all.

        `mean_iou_all` is PaddleSeg's mean IoU, over all classes, absent ones included. All are NaN if every pixel is void.
        """
        hit, predicted, true = _areas(self._counts)
        pixels = true.sum()
        is_present = predicted + true > 0
        iou = _ratio(hit, predicted + true - hit, empty=1)
        # Cohen's kappa: agreement beyond that of independent truth and prediction with the same class frequencies.
        agreement = _ratio(hit.sum(), pixels, empty=0)
        chance = _ratio((predicted * true).sum(), pixels**2, empty=0)
        values = {
            'mean_iou': iou[is_present].mean().item(),
            'accuracy': agreement.item(),
            'kappa': _ratio(agreement - chance, 1 - chance, empty=0).item(),  # with one class there is nothing beyond chance
            'mean_dice': _ratio(2 * hit, predicted + true, empty=0).mean().item(),
            'mean_iou_all': iou.mean().item(),
        }
        return values if pixels else dict.fromkeys(values, math.nan)

    def table(self) -> list[dict[str, str | float]]:
        """Return one row per class; `pixels` counts its ground truth."""
        hit, predicted, true = _areas(self._counts)
        columns: dict[str, Sequence[str | float]] = {
            'class': self.class_names,
            'iou': _ratio(hit, predicted + true - hit, empty=1).tolist(),
            'precision': _ratio(hit, predicted, empty=0).tolist(),
            'recall': _ratio(hit, true, empty=0).tolist(),
            'dice': _ratio(2 * hit, predicted + true, empty=0).tolist(),
            'pixels': true.long().tolist(),
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def figures(self) -> list[Figure]:
        """Return the confusion matrix, and the colours of the classes present in truth or predictions, without background."""
        _, predicted, true = _areas(self._counts)
        background = find_background(self.class_names)
        numbers = [number for number in range(len(self.class_names)) if predicted[number] + true[number]]
        present = {self.class_names[number]: number for number in numbers if number != background}
        colours = {name: '#{:02x}{:02x}{:02x}'.format(*COLOURS[number]) for name, number in present.items()}
        return [Matrix('Confusion matrix, by pixels', self.class_names, self._counts.tolist()), Legend(colours)]


def _areas(counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the correct, predicted and true pixels per class of counts [K, K]; [K] each, in float64, exact to 2**53."""
    exact = counts.double()
    return exact.diagonal(), exact.sum(0), exact.sum(1)


def _ratio(part: Tensor, whole: Tensor, *, empty: float) -> Tensor:
    """Return part / whole, and `empty` where the whole is 0."""
    return torch.where(whole > 0, part / whole, empty)
