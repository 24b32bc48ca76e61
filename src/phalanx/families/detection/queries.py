"""Output of detectors with queries (DETR): each query predicts one object, so that no suppression is needed.

Shapes: B batch, Q queries, K classes. Boxes are [.., 4] (centre x and y, width, height), from 0 to 1 of the input.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Queries(NamedTuple):
    """Predictions of one layer."""

    logits: Tensor  # [B, Q, K]
    boxes: Tensor  # [B, Q, 4]


class Decoded(NamedTuple):
    """Predictions of a decoder; in evaluation only those of the layer that gives the result."""

    layers: tuple[Queries, ...]
    # D-FINE in training: logits [B, Q, 4 * bins] of the distances of each layer; one entry each: the boxes [B, Q, 4] that they
    # refine (detached), the distances of the bins [B, bins] in units of side / (last bin), the head that predicts those boxes.
    distances: tuple[Tensor, ...] = ()
    references: tuple[Tensor, ...] = ()
    bins: tuple[Tensor, ...] = ()
    initial: tuple[Queries, ...] = ()

    @property
    def sets(self) -> list[Queries]:
        """All sets of predictions, the layers first."""
        return [*self.layers, *self.initial]


class QueryRaw(NamedTuple):
    """Output of a network. Every leaf is a tensor with the batch as its first axis, so that micro-batches can be joined."""

    decoded: Decoded
    size: Tensor  # int64 [B, 2], width and height of the input
    selection: tuple[Queries, ...] = ()  # of the encoder, for the positions that became queries; one entry, in training
    denoising: tuple[Decoded, ...] = ()  # of noisy true boxes; one entry, in training

    @property
    def sets(self) -> list[Queries]:
        """All sets of predictions that are matched, the layers first."""
        return [*self.decoded.layers, *self.selection, *self.decoded.initial]


def corners(boxes: Tensor) -> Tensor:
    """Boxes as (x0, y0, x1, y1)."""
    centres, sides = boxes.chunk(2, -1)
    return torch.cat([centres - sides / 2, centres + sides / 2], -1)


def centres(boxes: Tensor) -> Tensor:
    """Boxes (x0, y0, x1, y1) as (centre x and y, width, height)."""
    low, high = boxes.chunk(2, -1)
    return torch.cat([(low + high) / 2, high - low], -1)


def in_pixels(boxes: Tensor, size: Tensor) -> Tensor:
    """Corners [..., B, ., 4] in pixels of the input of `size` [B, 2]."""
    return corners(boxes) * size.repeat(1, 2)[:, None].to(boxes.dtype)


def inverse_sigmoid(x: Tensor) -> Tensor:
    """Logit of `x`, which is limited to 1e-5 from 0 and 1."""
    x = x.clamp(0, 1)
    return (x.clamp(min=1e-5) / (1 - x).clamp(min=1e-5)).log()
