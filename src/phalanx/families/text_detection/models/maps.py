"""Outputs of text detection networks. Shapes: B batch."""

from typing import NamedTuple

from torch import Tensor


class Maps(NamedTuple):
    """Maps [B, 1, H, W] of probabilities, at least float32; in evaluation the shrink map alone."""

    shrink: Tensor  # P of the paper: probability of the inside of a shrunk text
    threshold: Tensor | None = None  # T of the paper
    binary: Tensor | None = None  # approximate binary map, a steep sigmoid of P - T


class RefinedMaps(NamedTuple):
    """Training maps [B, 1, H, W] of a head that refines its coarse prediction.

    `shrink` is the refined map; `binary` comes from the coarse one, which has a term of its own in the loss.
    """

    shrink: Tensor
    threshold: Tensor
    binary: Tensor
