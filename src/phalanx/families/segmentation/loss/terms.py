"""The losses of a recipe as terms: which output each takes, by what name and with what coefficient."""

from collections.abc import Sequence
from functools import partial
from itertools import chain, count
from typing import Annotated, NamedTuple

from phalanx.families.segmentation.loss.connectivity import SemanticConnectivity
from phalanx.families.segmentation.loss.cross_entropy import CrossEntropy
from phalanx.families.segmentation.loss.dice import Dice
from phalanx.families.segmentation.loss.lovasz import LovaszHinge, LovaszSoftmax
from phalanx.families.segmentation.loss.ohem import OhemCrossEntropy
from phalanx.families.segmentation.loss.pixel_loss import PixelLoss
from phalanx.families.segmentation.loss.rmi import RegionMutualInformation

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
    """The sum of `losses`, each times its one of `coefficients`: each is a term of the step's loss.

    Each keeps to labels as they are: void pixels stay void. (In PaddleSeg, the losses after a Dice loss see class 0 there.)
    Raises ValueError when there are not as many coefficients as losses.
    """

    def __init__(self, *, losses: tuple[Annotated[partial[PixelLoss], PARTS], ...], coefficients: tuple[float, ...]) -> None:
        if len(losses) != len(coefficients):
            raise ValueError(f'there are {len(losses)} losses, but {len(coefficients)} coefficients')
        self.losses = [loss() for loss in losses]
        self.coefficients = coefficients


class OutputLoss(NamedTuple):
    """One loss of one output."""

    name: str  # what the log calls it: `ohem` for the main output, `ohem_1` for the one after it
    output: int
    loss: PixelLoss
    coefficient: float


def terms_of(losses: Sequence[tuple[PixelLoss | Mixed, float]]) -> list[OutputLoss]:
    """The terms of the loss for each output's loss and coefficient; those of a mixture one by one.

    Raises ValueError for an output that learns nothing.
    """
    terms: dict[str, OutputLoss] = {}
    for output, (loss, coefficient) in enumerate(losses):
        parts = list(zip(loss.losses, loss.coefficients, strict=True)) if isinstance(loss, Mixed) else [(loss, 1.0)]
        if all(isinstance(part, SemanticConnectivity) for part, _ in parts):
            raise ValueError(
                f'loss[{output}]: semantic_connectivity has no gradient, so alone it teaches nothing; '
                'use {name: mixed, losses: [cross_entropy, semantic_connectivity], coefficients: [1, 0.1]}, say'
            )
        for part, share in parts:
            kind = next(name for name, kind in PARTS.items() if isinstance(part, kind))
            wanted = f'{kind}_{output}' if output else kind
            name = next(name for name in chain([wanted], (f'{wanted}.{n}' for n in count(2))) if name not in terms)
            terms[name] = OutputLoss(name, output, part, coefficient * share)
    return list(terms.values())
