"""Means of the terms of a loss over a whole step, and their gradients. Shapes: T terms."""

from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.system.memory import constant


def factors(weights: Tensor, least: Sequence[float]) -> Tensor:
    """Gradients of means of terms with respect to totals, [terms], given the weights of the step and their lower bounds.

    0 for a term of weight 0: a step without targets for it teaches nothing.
    """
    weights = bound_weights(weights, least)
    return torch.where(weights == 0, 0, 1 / weights)


def means(totals: Tensor, weights: Tensor, least: Sequence[float]) -> Tensor:
    """Means of terms [terms], given totals and weights over the step (all ranks, all micro-batches). No gradient.

    A total of 0 has the mean 0, also with weight 0. Another total with weight 0 is an error of the loss, and infinite.
    """
    # `where` keeps 0 / 0 out of the result; there is no gradient that its NaN could enter.
    return torch.where(totals == 0, 0, totals / bound_weights(weights, least))


def bound_weights(weights: Tensor, least: Sequence[float]) -> Tensor:
    """`weights` [terms], none below its bound. NaN stays NaN."""
    if not any(least):
        return weights
    return torch.maximum(weights, constant(tuple(least), weights.dtype, weights.device))
