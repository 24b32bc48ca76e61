"""The raw output of PP-YOLOE-like networks (distances as distributions), and the boxes that it means.

Shapes: B batch, A anchors (one for each cell of each level), K classes.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from phalanx.data.boxes import from_distances

REACH = (0, 16)  # a distance is a distribution over 0, 1, .. 16 strides, unless a network says otherwise


class RawTensors(NamedTuple):
    """The fields of `Raw`; a NamedTuple can hold no cached property itself."""

    logits: Tensor  # [B, A, K]
    distances: Tensor  # [B, A, 4 * bins] logits of the distances of the left, top, right and bottom side
    points: Tensor  # [A, 2] (x, y), the centre of the cell in pixels of the input, float32 or better
    strides: Tensor  # [A] the size of the cell in pixels
    num_per_level: tuple[int, ...]  # how many anchors each level has
    maps: tuple[Tensor, ...] = ()  # [B, C, h, w] of the neck, which a distillation compares
    min_distance: int = REACH[0]  # the distance that the first bin stands for, in strides; each other stands for one more
    teacher: Raw | None = None  # of the same images, where a student learns from a teacher


class Raw(RawTensors):
    """The output of a network in both modes; anchors stand level by level, the coarsest first, row by row."""

    @property
    def bins(self) -> int:
        """`reg_max` + 1 of the paper, where `min_distance` is 0."""
        return self.distances.shape[-1] // 4

    @cached_property
    def boxes(self) -> Tensor:
        """The predicted boxes [B, A, 4], decoded once for the assigner and all losses."""
        with torch.enable_grad():  # the assigner, which needs no gradient, comes first; the losses need one
            return decode_boxes(self)


def decode_boxes(raw: RawTensors) -> Tensor:
    """Predicted boxes [B, A, 4] in pixels of the input, not clipped to it: the expected distances from each point."""
    distributions = raw.distances.to(raw.points.dtype).view(*raw.distances.shape[:2], 4, -1).softmax(-1)  # [B, A, 4, bins]
    last = raw.min_distance + distributions.shape[-1]
    bins = torch.arange(raw.min_distance, last, dtype=raw.points.dtype, device=raw.points.device)
    distances = (distributions * bins).sum(-1)  # [B, A, 4]; a matrix product would be in half precision under autocast
    return from_distances(raw.points, distances * raw.strides[:, None])
