"""The cross-entropy of structure tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.task import Term
from phalanx.nn.precision import at_least_float32


def structure_loss(logits: Tensor, ids: Tensor) -> Term:  # [B, L, K], [B, L]
    """The mean cross-entropy over all steps, those after the end of a shorter table too: the original has no void token.

    So a short table costs less than a long one, and its network learns to say start tokens after its end.
    """
    total = F.cross_entropy(at_least_float32(logits).transpose(1, 2), ids, reduction='sum')
    return Term(total, count_of_tokens(ids))


def count_of_tokens(ids: Tensor) -> Tensor:
    """What the loss of the tokens is divided by, [] float64."""
    return ids.new_full((), ids.numel(), dtype=torch.float64)
