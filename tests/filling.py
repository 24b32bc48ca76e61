"""Loading of arrays under their original names into a network, like those of a file."""

from __future__ import annotations

from torch import nn

from phalanx.weights.matching import Weights
from phalanx.weights.reading import compare_weights


def load_original(model: nn.Module, arrays: Weights) -> None:
    """Fill `model`, which keeps its dtype and device, from `arrays` in Paddle's layout, which must all fit."""
    fit = compare_weights(model, arrays, 'all')
    assert not fit.problems()
    fit.fill()
