"""Gradient clipping."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Clip:
    norm: float
    """Maximum L2 norm of the gradient; a longer gradient is scaled down to it."""
    per_tensor: bool = False
    """Clip each parameter's gradient separately instead of the norm over all parameters."""

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise ValueError(f'norm must be above 0, got {self.norm}')


def clip(parameters: Iterable[Tensor], limit: Clip | None) -> Tensor:
    """Clip the gradients of `parameters` in place; return their overall norm [] before clipping.

    With `limit` None, only compute the norm. It stays on the device, so the host does not wait.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    # Norm of all gradients from the norms of each: one multi-tensor kernel.
    norms = torch.stack(torch._foreach_norm(gradients))  # [tensors]
    whole: Tensor = torch.linalg.vector_norm(norms)
    if limit is not None:
        factors = limit.norm / (norms if limit.per_tensor else whole).clamp(min=limit.norm)
        # One factor for all tensors is one kernel; with a factor per tensor torch launches one kernel each.
        torch._foreach_mul_(gradients, list(factors.unbind()) if limit.per_tensor else factors)
    return whole
