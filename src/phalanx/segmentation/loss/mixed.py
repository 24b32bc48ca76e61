"""Several losses of one output. Shapes: B batch, K classes."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from phalanx.segmentation.loss.connectivity import SemanticConnectivity
from phalanx.segmentation.loss.cross_entropy import CrossEntropy
from phalanx.segmentation.loss.dice import Dice
from phalanx.segmentation.loss.lovasz import LovaszHinge, LovaszSoftmax
from phalanx.segmentation.loss.ohem import OhemCrossEntropy
from phalanx.segmentation.loss.pixel_loss import PixelLoss
from phalanx.segmentation.loss.rmi import RegionMutualInformation
from phalanx.step import WholeStep
from phalanx.task import Term

PARTS = {
    'cross_entropy': CrossEntropy,
    'ohem': OhemCrossEntropy,
    'dice': Dice,
    'lovasz': LovaszSoftmax,
    'lovasz_hinge': LovaszHinge,
    'rmi': RegionMutualInformation,
    'semantic_connectivity': SemanticConnectivity,
}


class Mixed:
    """The sum of `losses`, each times its one of `coefficients`.

    Each keeps to labels as they are: void pixels stay void. (In PaddleSeg, the losses after a Dice loss see class 0 there.)
    Raises ValueError when there are not as many coefficients as losses.
    """

    def __init__(self, *, losses: tuple[Annotated[partial[PixelLoss], PARTS], ...], coefficients: tuple[float, ...]) -> None:
        if len(losses) != len(coefficients):
            raise ValueError(f'there are {len(losses)} losses, but {len(coefficients)} coefficients')
        self.losses = [loss() for loss in losses]
        self.coefficients = coefficients

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:  # [B, K, H, W], [B, H, W]
        terms = [loss(logits, labels, whole) for loss in self.losses]
        samples = terms[0].weight.new_full((), len(labels))
        weights = whole.sum(torch.stack([samples, *(term.weight for term in terms)]))  # of the whole step: they differ in unit
        parts = zip(self.coefficients, terms, weights[1:], strict=True)
        total = torch.stack([coefficient * term.total / weight for coefficient, term, weight in parts]).sum()
        return Term(total, samples / weights[0])  # totals are shares of the step's loss already, so weights add up to 1

    def check(self, num_classes: int) -> None:
        for loss in self.losses:
            loss.check(num_classes)
