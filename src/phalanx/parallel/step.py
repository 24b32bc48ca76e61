"""Quantities of the whole step that a loss may use; each rank holds a share of the step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.parallel import dist


@dataclass
class WholeStep:
    """Global batch of one optimizer update, over all ranks.

    The attributes are known in advance from the data stream; the methods (threshold of hard-example mining, largest image) are
    collective, so all ranks must call them equally often. By default, the step of one batch on one rank.
    """

    samples: int = 0  # in the global batch; 0: in the batch at hand
    epoch: int = 0  # mean over the samples, rounded down
    epochs: float = 0.0  # length of the run

    def count(self, own: int) -> int:
        """Number of samples in the step, of which this rank has `own`."""
        return self.samples or own

    def sum(self, part: Tensor) -> Tensor:
        """Sum of `part` over the ranks; not differentiable."""
        return dist.sum_over_ranks(part.detach())

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """Elementwise maximum of `numbers` over the ranks. On the host: does not wait for the device."""
        return dist.largest_over_ranks(torch.tensor(numbers)).tolist()
