"""What a loss may ask about the whole step, of which a rank holds a share."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.parallel import dist


@dataclass
class WholeStep:
    """The global batch of one optimizer update, over all ranks.

    What the stream of samples knows is here already; the rest (the threshold of hard-example mining, the largest image) comes
    from all ranks when asked for, by every rank equally often. As constructed, it is the step of one batch on one rank.
    """

    samples: int = 0  # of the global batch; 0: those of the batch at hand
    epoch: int = 0  # the mean over the samples, rounded down
    epochs: float = 0.0  # of the whole run

    def count(self, own: int) -> int:
        """The samples of the step, of which this rank has `own`."""
        return self.samples or own

    def sum(self, part: Tensor) -> Tensor:
        """`part` added up over the ranks. No gradient flows through it."""
        return dist.sum_over_ranks(part.detach())

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest that each of `numbers` is on any rank. On the host: no device is waited for."""
        return dist.largest_over_ranks(torch.tensor(numbers)).tolist()
