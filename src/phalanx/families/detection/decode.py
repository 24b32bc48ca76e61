"""Raw output of PP-YOLOE-like networks (distributions of distances, DFL), and its decoding to boxes.

Shapes: B batch, A anchors (one per cell of each level), K classes.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from phalanx.data.boxes import from_distances

REACH = (0, 16)  # default range of distances in strides (`reg_range`; 16 is `reg_max`)


class RawTensors(NamedTuple):
    """The fields of `Raw`; a NamedTuple can hold no cached property itself."""

    logits: Tensor  # [B, A, K]
    distances: Tensor  # [B, A, 4 * bins] logits of the distances of the left, top, right and bottom side
    points: Tensor  # [A, 2] (x, y), the centre of the cell in pixels of the input, float32 or better
    strides: Tensor  # [A] the size of the cell in pixels
    num_per_level: tuple[int, ...]  # anchors of each level
    maps: tuple[Tensor, ...] = ()  # [B, C, h, w] of the neck, for distillation
    min_distance: int = REACH[0]  # distance of the first bin, in strides; each further bin adds one
    teacher: Raw | None = None  # output of the teacher for the same images, in a distillation


class Raw(RawTensors):
    """Output of a network in both modes; anchors level by level, the coarsest first, row by row."""

    @property
    def bins(self) -> int:
        """`reg_max` + 1 of the paper, where `min_distance` is 0."""
        return self.distances.shape[-1] // 4

    @cached_property
    def boxes(self) -> Tensor:
        """Predicted boxes [B, A, 4], decoded once for the assigner and all losses."""
        with torch.enable_grad():  # the assigner, which needs no gradient, comes first; the losses need one
            return decode_boxes(self)


def decode_boxes(raw: RawTensors) -> Tensor:
    """Predicted boxes [B, A, 4] in pixels of the input, not clipped to it: expected distances from each point."""
    # Integral over the distribution of each side, sum_i p_i * i (Generalized Focal Loss, Li et al. 2020, eq. 5), in strides.
    distributions = raw.distances.to(raw.points.dtype).view(*raw.distances.shape[:2], 4, -1).softmax(-1)  # [B, A, 4, bins]
    last = raw.min_distance + distributions.shape[-1]
    bins = torch.arange(raw.min_distance, last, dtype=raw.points.dtype, device=raw.points.device)
    distances = (distributions * bins).sum(-1)  # [B, A, 4]; a matrix product would be in half precision under autocast
    return from_distances(raw.points, distances * raw.strides[:, None])
