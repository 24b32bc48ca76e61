"""Arrays under their original names, put into a network as those of a file are."""

from __future__ import annotations

from torch import nn

from phalanx.weights.matching import Weights
from phalanx.weights.reading import compare_weights


def load_original(model: nn.Module, arrays: Weights) -> None:
    """Fills `model`, whose dtype and device stay, from `arrays` laid out as in Paddle, which must all fit."""
    fit = compare_weights(model, arrays, 'all')
    assert not fit.problems()
    fit.fill()
