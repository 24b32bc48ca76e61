"""How far the boxes of cells are from the true ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.task import Term
from phalanx.nn.precision import at_least_float32

LocationLoss = Callable[[Tensor, Tensor, Tensor], Term]  # boxes [B, L, 4], true ones [B, L, 4], where there is one [B, L]

EPSILON = 1e-12  # a table's addition to the weight: a step without a box costs 0, not 0/0


def smooth_l1(boxes: Tensor, truth: Tensor, has_box: Tensor) -> Term:
    """A box costs the sum, not the mean, of the smooth L1 distances of its coordinates: half the square below 1."""
    return _over_boxes(F.smooth_l1_loss(boxes, truth, reduction='none'), has_box)


def l1(boxes: Tensor, truth: Tensor, has_box: Tensor) -> Term:
    """A box costs the sum of the distances of its coordinates."""
    return _over_boxes(F.l1_loss(boxes, truth, reduction='none'), has_box)


def _over_boxes(distances: Tensor, has_box: Tensor) -> Term:
    distances = at_least_float32(distances)
    return Term((distances * has_box[..., None].to(distances.dtype)).sum(), count_of_boxes(has_box))


def count_of_boxes(has_box: Tensor) -> Tensor:
    """What the loss of the boxes is divided by, [] float64."""
    return has_box.sum(dtype=torch.float64) + EPSILON * len(has_box)


LOCATION_LOSSES: dict[str, LocationLoss] = {'smooth_l1': smooth_l1, 'l1': l1}
