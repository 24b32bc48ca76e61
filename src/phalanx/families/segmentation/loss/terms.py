"""The losses of a recipe as terms: which output each takes, by what name and with what coefficient."""

from collections.abc import Sequence
from itertools import chain, count
from typing import NamedTuple

from phalanx.families.segmentation.loss.connectivity import SemanticConnectivity
from phalanx.families.segmentation.loss.mixed import PARTS, Mixed
from phalanx.families.segmentation.loss.pixel_loss import PixelLoss


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
