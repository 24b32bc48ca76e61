"""How far the boxes of cells are from the true ones."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.table.loss.targets import Targets
from phalanx.families.table.output import TableOutput
from phalanx.families.task import Loss, Term
from phalanx.nn.precision import at_least_float32

EPSILON = 1e-12  # a table's addition to the weight: a step without a box costs 0, not 0/0


@dataclass(frozen=True, kw_only=True)
class SmoothL1:
    """A box costs the sum, not the mean, of the smooth L1 distances of its coordinates: half the square below 1."""

    def __call__(self, outputs: TableOutput, targets: Targets) -> Loss:
        return over_boxes(F.smooth_l1_loss(outputs.boxes, targets.boxes, reduction='none'), targets.has_box)

    def weights(self, targets: Targets) -> dict[str, Tensor]:
        return {'location': count_of_boxes(targets.has_box)}


@dataclass(frozen=True, kw_only=True)
class L1:
    """A box costs the sum of the distances of its coordinates."""

    def __call__(self, outputs: TableOutput, targets: Targets) -> Loss:
        return over_boxes(F.l1_loss(outputs.boxes, targets.boxes, reduction='none'), targets.has_box)

    def weights(self, targets: Targets) -> dict[str, Tensor]:
        return {'location': count_of_boxes(targets.has_box)}


def over_boxes(distances: Tensor, has_box: Tensor) -> Loss:
    """The `distances` [B, L, 4] of the cells that have a box [B, L]."""
    distances = at_least_float32(distances)
    total = (distances * has_box[..., None].to(distances.dtype)).sum()
    return {'location': Term(total, count_of_boxes(has_box))}


def count_of_boxes(has_box: Tensor) -> Tensor:
    """What the loss of the boxes is divided by, [] float64."""
    return has_box.sum(dtype=torch.float64) + EPSILON * len(has_box)
