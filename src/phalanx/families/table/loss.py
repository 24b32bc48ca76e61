"""Losses of tables, those of PaddleOCR's SLALoss: called with the output of a network and its targets, they give Terms.

Shapes: B tables, L steps: as many as the longest table of the whole step has tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.table.output import TableOutput
from phalanx.families.task import Loss, Term
from phalanx.nn.precision import at_least_float32


class Targets(NamedTuple):
    """What follows each token."""

    ids: Tensor  # int64 [B, L] tokens
    boxes: Tensor  # float32 [B, L, 4] of the cells, xyxy in shares of width and height, or [B, L, 8] corners
    has_box: Tensor  # bool [B, L]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The mean cross-entropy over all steps, those after the end of a shorter table too: the original has no void token.

    So a short table costs less than a long one, and its network learns to say start tokens after its end.
    """

    def __call__(self, outputs: TableOutput, targets: Targets) -> Loss:
        logits = at_least_float32(outputs.logits).transpose(1, 2)  # [B, K, L]
        return {'structure': Term(F.cross_entropy(logits, targets.ids, reduction='sum'), self.weights(targets)['structure'])}

    def weights(self, targets: Targets) -> dict[str, Tensor]:
        return {'structure': targets.ids.new_full((), targets.ids.numel(), dtype=torch.float64)}


EPSILON = 1e-12  # a table's addition to the weight: a step without a box costs 0, not 0/0


@dataclass(frozen=True, kw_only=True)
class L1:
    """A box costs the sum of the distances of its coordinates."""

    distance: ClassVar[Callable[..., Tensor]] = F.l1_loss

    def __call__(self, outputs: TableOutput, targets: Targets) -> Loss:
        distances = at_least_float32(type(self).distance(outputs.boxes, targets.boxes, reduction='none'))  # [B, L, 4 or 8]
        total = (distances * targets.has_box[..., None].to(distances.dtype)).sum()
        return {'location': Term(total, self.weights(targets)['location'])}

    def weights(self, targets: Targets) -> dict[str, Tensor]:
        return {'location': targets.has_box.sum(dtype=torch.float64) + EPSILON * len(targets.has_box)}


@dataclass(frozen=True, kw_only=True)
class SmoothL1(L1):
    """A box costs the sum, not the mean, of the smooth L1 distances of its coordinates: half the square below 1."""

    distance: ClassVar[Callable[..., Tensor]] = F.smooth_l1_loss


class TableLoss(Protocol):
    """What every loss of tables is."""

    def __call__(self, outputs: TableOutput, targets: Targets) -> Loss: ...
    def weights(self, targets: Targets) -> dict[str, Tensor]:
        """The weights [] (float64) of its Terms, which the targets alone determine."""


LOSSES: dict[str, type[TableLoss]] = {'structure': Structure, 'smooth_l1': SmoothL1, 'l1': L1}
