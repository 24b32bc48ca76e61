"""Gradient clipping."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Clip:
    norm: float
    """The largest L2 norm a gradient may have; a longer one is scaled down to it."""
    per_tensor: bool = False
    """Clip the gradient of each parameter by itself, instead of all together as one long vector."""

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise ValueError(f'norm must be above 0, got {self.norm}')


def clip(parameters: Iterable[Tensor], limit: Clip | None) -> Tensor:
    """Clips the gradients of `parameters` in place and returns their norm [] before that, all together.

    With `limit` None it only measures. The device is never waited for: the norm stays on it.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    norms = torch.stack(torch._foreach_norm(gradients))  # [tensors]
    whole: Tensor = torch.linalg.vector_norm(norms)
    if limit is not None:
        factors = limit.norm / (norms if limit.per_tensor else whole).clamp(min=limit.norm)
        # One tensor for all is one kernel; torch has none for a tensor each, and takes them in turn.
        torch._foreach_mul_(gradients, list(factors.unbind()) if limit.per_tensor else factors)
    return whole
