"""Catalog of losses, and the terms of a recipe's loss: name, output and coefficient of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from typing import Annotated, Any, NamedTuple

from torch import Tensor

from phalanx.config.bind import Part
from phalanx.families.losses import check_loss
from phalanx.families.segmentation.loss.connectivity import SemanticConnectivity
from phalanx.families.segmentation.loss.cross_entropy import CrossEntropy
from phalanx.families.segmentation.loss.dice import Dice
from phalanx.families.segmentation.loss.lovasz import LovaszHinge, LovaszSoftmax
from phalanx.families.segmentation.loss.ohem import OhemCrossEntropy
from phalanx.families.segmentation.loss.pixel_loss import PixelLoss
from phalanx.families.segmentation.loss.rmi import RegionMutualInformation
from phalanx.system.errors import RunError

NEEDS = ('weights', 'check')  # what a loss has besides its call


class Mixed:
    """Sum of `losses`, each weighted by its entry of `coefficients`; each becomes a term of the loss of the step.

    Void pixels stay void for all of them. (In PaddleSeg, the losses after a Dice loss see class 0 there.) Raises ValueError
    unless there is one coefficient per loss.
    """

    def __init__(
        self, *, losses: tuple[Annotated[Part[PixelLoss | Mixed], LOSSES], ...], coefficients: tuple[float, ...]
    ) -> None:
        if len(losses) != len(coefficients):
            raise ValueError(f'mixed has {len(losses)} losses, but {len(coefficients)} coefficients: give one per loss')
        self.losses = [(loss.name, check_loss(loss(), NEEDS), share) for loss, share in zip(losses, coefficients, strict=True)]


LOSSES: dict[str, Callable[..., Any]] = {
    'cross_entropy': CrossEntropy,
    'ohem': OhemCrossEntropy,
    'dice': Dice,
    'lovasz': LovaszSoftmax,
    'lovasz_hinge': LovaszHinge,
    'rmi': RegionMutualInformation,
    'semantic_connectivity': SemanticConnectivity,
    'mixed': Mixed,
}


class OutputLoss(NamedTuple):
    """One loss of one output of the network."""

    name: str  # in the log: `ohem` for the main output, `ohem_1` for the one after it
    output: int
    loss: PixelLoss
    coefficient: float


def build_terms(losses: Sequence[tuple[str, PixelLoss | Mixed, float]]) -> list[OutputLoss]:
    """Return the terms of the losses, given as (catalog name, loss, coefficient) per output; mixtures are flattened.

    Raises ValueError for an output without any loss that has a gradient.
    """
    terms: dict[str, OutputLoss] = {}
    for output, entry in enumerate(losses):
        parts = [*flatten_mixture(*entry)]
        if all(isinstance(loss, SemanticConnectivity) for _, loss, _ in parts):
            raise ValueError(
                f'loss[{output}]: semantic_connectivity has no gradient, so this output would learn nothing; add '
                'another loss: {name: mixed, losses: [cross_entropy, semantic_connectivity], coefficients: [1, 0.1]}'
            )
        for kind, loss, coefficient in parts:
            # A loss that occurs again gets a number, so that the log keeps both apart.
            base = f'{kind}_{output}' if output else kind
            name = next(name for name in chain([base], (f'{base}.{n}' for n in count(2))) if name not in terms)
            terms[name] = OutputLoss(name, output, loss, coefficient)
    return list(terms.values())


def flatten_mixture(name: str, loss: PixelLoss | Mixed, coefficient: float) -> Iterator[tuple[str, PixelLoss, float]]:
    """Yield name, loss and coefficient of each part of a mixture, or of `loss` itself."""
    if not isinstance(loss, Mixed):
        yield name, loss, coefficient
        return
    # Mixtures may contain mixtures: coefficients multiply.
    for part, inner, share in loss.losses:
        yield from flatten_mixture(part, inner, coefficient * share)


def check_outputs(outputs: Any, count: int, classes: int, labels: Tensor) -> None:
    """Raise RunError unless `outputs`, which may be a plugin's, are `count` logits [B, classes, H, W]. `labels`: [B, H, W]."""
    is_list = isinstance(outputs, list | tuple) and all(isinstance(each, Tensor) for each in outputs)
    found = [list(each.shape) for each in outputs] if is_list else []
    B, H, W = labels.shape
    expected = [B, classes, H, W]
    if len(found) != count or any(shape != expected for shape in found):
        returned = f'{len(found)} of {", ".join(map(str, found))}' if found else type(outputs).__name__
        raise RunError(f'model: in training it must return a list of {count} logits {expected}; it returned {returned}')
