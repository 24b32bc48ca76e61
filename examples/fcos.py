"""A detector of one's own: anchor-free, without distributions of distances, after FCOS (Tian et al., arXiv:1904.01355).

phalanx train --plugin examples/fcos.py ppyoloe_digits --set model.name=fcos loss.name=fcos
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchvision.ops import generalized_box_iou_loss, sigmoid_focal_loss

from phalanx.families.detection.loss import Assigned, DetectionLoss, Truths
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


class SmallestAround:
    """The assigner: a cell inside a box answers for it; inside several, for the smallest."""

    def __call__(self, raw: Raw, truths: Truths, whole: WholeStep) -> Assigned:
        low, high = truths.boxes[:, None].chunk(2, -1)  # [B, 1, N, 2]
        points = raw.points[:, None]  # [A, 1, 2]
        inside = ((points > low) & (points < high)).all(-1) & truths.exist[:, None]  # [B, A, N]
        areas, truth = torch.where(inside, (high - low).prod(-1), torch.inf).min(-1)
        answers = areas < torch.inf
        return Assigned(answers, truth, answers.float(), len(raw.points))


@dataclass(frozen=True, kw_only=True)
class FCOSLoss(DetectionLoss):
    """Focal loss of classes, GIoU loss of boxes."""

    box_weight: float = 2.0

    @property
    def assigner(self) -> SmallestAround:
        return SmallestAround()

    def __call__(self, raw: Raw, truths: Truths, assigned: Assigned) -> Loss:
        logits, positives = raw.logits.float(), assigned.score_sum
        classes = truths.classes.gather(1, assigned.truth_index)[..., None]  # [B, A, 1]
        target = torch.zeros_like(logits).scatter(2, classes, assigned.score[..., None])
        true = truths.boxes.gather(1, assigned.truth_index[..., None].expand(-1, -1, 4))
        box = generalized_box_iou_loss(boxes_of(raw), true) * assigned.score
        return {
            'cls': Term(sigmoid_focal_loss(logits, target, reduction='sum'), positives, 1.0),
            'box': Term(self.box_weight * box.sum(), positives, 1.0),
        }


def fcos(num_classes: int, *, channels: int = 24) -> FCOS:
    return FCOS(num_classes, channels)


PLUGIN = {'detection': {'models': {'fcos': fcos}, 'losses': {'fcos': FCOSLoss}}}
