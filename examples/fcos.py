"""A detector of one's own: anchor-free, without distributions of distances, after FCOS (Tian et al., arXiv:1904.01355).

phalanx train --plugin examples/fcos.py ppyoloe_digits --set model.name=fcos loss.name=fcos
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchvision.ops import generalized_box_iou_loss, sigmoid_focal_loss

from phalanx.families.task import Loss, Term
from phalanx.nn.layers import ConvBNReLU
from phalanx.parallel.step import WholeStep

STRIDE = 8


class Raw(NamedTuple):
    logits: Tensor  # [B, A, K], A cells
    sides: Tensor  # [B, A, 4] distances to the left, top, right and bottom side, in pixels
    points: Tensor  # [A, 2] centres of the cells in pixels


class FCOS(nn.Module):
    """images [B, 3, H, W] -> Raw; one level of stride 8 is enough for small images."""

    def __init__(self, num_classes: int, channels: int) -> None:
        super().__init__()
        widths = (3, channels, 2 * channels, 4 * channels)
        downs = [ConvBNReLU(before, after, 3, stride=2) for before, after in itertools.pairwise(widths)]
        self.body = nn.Sequential(*downs, ConvBNReLU(widths[-1], widths[-1], 3))
        self.classify = nn.Conv2d(widths[-1], num_classes, 1)
        self.locate = nn.Conv2d(widths[-1], 4, 1)
        nn.init.constant_(self.classify.bias, -4.6)  # a probability of 0.01, so that background does not drown the rest

    def forward(self, images: Tensor) -> Raw:
        maps = self.body(images)
        logits, sides = (head(maps).flatten(2).transpose(1, 2) for head in (self.classify, self.locate))
        y, x = (STRIDE * (torch.arange(n, device=maps.device) + 0.5) for n in maps.shape[2:])
        points = torch.stack(torch.meshgrid(x, y, indexing='xy'), -1).flatten(0, 1)
        return Raw(logits, STRIDE * sides.float().exp(), points)

    def decode(self, raw: Raw) -> tuple[Tensor, Tensor]:
        return boxes_of(raw), raw.logits.float().sigmoid()


def boxes_of(raw: Raw) -> Tensor:
    """[B, A, 4], xyxy in pixels."""
    return torch.cat([raw.points - raw.sides[..., :2], raw.points + raw.sides[..., 2:]], -1)


@dataclass(frozen=True, kw_only=True)
class FCOSLoss:
    """A cell inside a box answers for it (for the smallest, inside several): focal loss of classes, GIoU loss of boxes."""

    box_weight: float = 2.0

    def __call__(self, raw: Raw, boxes: Sequence[Tensor], classes: Sequence[Tensor], whole: WholeStep) -> Loss:
        total, located, positives = raw.logits.new_zeros(()), raw.sides.new_zeros(()), raw.sides.new_zeros(())
        for logits, predicted, true, labels in zip(raw.logits.float(), boxes_of(raw), boxes, classes, strict=True):
            x, y = raw.points.unbind(-1)
            inside = (
                (x[:, None] > true[:, 0]) & (y[:, None] > true[:, 1]) & (x[:, None] < true[:, 2]) & (y[:, None] < true[:, 3])
            )
            areas = torch.where(inside, (true[:, 2] - true[:, 0]) * (true[:, 3] - true[:, 1]), torch.inf)  # [A, N]
            target, is_positive = torch.zeros_like(logits), inside.any(1)
            if len(true):
                answers = areas.argmin(1)
                target[is_positive] = nn.functional.one_hot(labels[answers[is_positive]], logits.shape[1]).to(target.dtype)
                located = located + generalized_box_iou_loss(
                    predicted[is_positive], true[answers[is_positive]], reduction='sum'
                )
            total = total + sigmoid_focal_loss(logits, target, reduction='sum') + 0 * predicted.sum()
            positives = positives + is_positive.sum()
        return {'cls': Term(total, positives, 1.0), 'box': Term(self.box_weight * located, positives, 1.0)}

    def weights(self, boxes: Sequence[Tensor], classes: Sequence[Tensor]) -> None:
        """Positive cells depend on the size of the map, which the boxes do not tell."""


def fcos(num_classes: int, *, channels: int = 24) -> FCOS:
    return FCOS(num_classes, channels)


PLUGIN = {'detection': {'models': {'fcos': fcos}, 'losses': {'fcos': FCOSLoss}}}
