"""ATSS and the task-aligned assignment (TAL): true box and target score of each anchor.

Shapes: B batch, N true boxes per image (the maximum of the batch), A anchors. No tensor is larger than [B, N, A], and
no shape depends on values on the device: the host would have to wait for the number of positive anchors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.data.boxes import EPSILON, contains, iou, pairwise_iou
from phalanx.families.detection.decode import Raw


class Truths(NamedTuple):
    """True boxes of a batch; N is at least 1, so that a batch without boxes needs no special case."""

    boxes: Tensor  # [B, N, 4] in pixels of the input; zero for padding
    classes: Tensor  # [B, N] int64
    exist: Tensor  # bool [B, N]
    most: Tensor | None = None  # int64 [], the true boxes of the fullest image of the step; None: N


@dataclass(frozen=True)
class Assigned:
    """Assignment of anchors to true boxes; anchors outside `fg_mask` are background."""

    fg_mask: Tensor  # bool [B, A]
    truth_index: Tensor  # int64 [B, A] index of the true box in its image
    score: Tensor  # [B, A] target probability of the class; 0 for background
    max_positives: int  # upper bound of positive anchors per image
    is_static: bool = False  # True for assignments by positions alone (ATSS)

    @cached_property
    def positives(self) -> tuple[Tensor, Tensor, Tensor]:  # int64 [B, 1], int64 [B, most], [B, most]
        """Images, anchors (positive ones first, then background up to `max_positives`) and their scores."""
        anchors = (~self.fg_mask).byte().argsort(dim=1, stable=True)[:, : self.max_positives]
        images = torch.arange(len(anchors), device=anchors.device)[:, None]
        return images, anchors, self.score.gather(1, anchors)

    @cached_property
    def score_sum(self) -> Tensor:
        """Sum of the scores []: one tensor, so that micro-batches see that all terms have the same weight."""
        return self.score.sum()

    def true_boxes(self, truths: Truths) -> Tensor:
        """True boxes [B, max_positives, 4] of the anchors in `positives`."""
        images, anchors, _ = self.positives
        return truths.boxes[images, self.truth_index.gather(1, anchors)]


def pad_truths(boxes: Sequence[Tensor], classes: Sequence[Tensor], dtype: torch.dtype, most: int = 1) -> Truths:
    """Pad true boxes [n, 4] and classes [n] of each image to one batch, and to at least `most` of them."""
    most = max(most, *(len(of_image) for of_image in boxes))
    exist = [F.pad(torch.ones_like(of_image, dtype=torch.bool), (0, most - len(of_image))) for of_image in classes]
    return Truths(
        torch.stack([F.pad(of_image.to(dtype), (0, 0, 0, most - len(of_image))) for of_image in boxes]),
        torch.stack([F.pad(of_image.long(), (0, most - len(of_image))) for of_image in classes]),
        torch.stack(exist),
    )


def assign_atss(truths: Truths, predicted: Tensor, raw: Raw, *, top_k: int, anchor_size: float) -> Assigned:
    """Adaptive training sample selection (ATSS), by positions alone; the score is the IoU of the prediction [B, A, 4].

    Candidates are the `top_k` anchors per level with centres nearest to that of the true box. Positive are those whose anchor
    box, a square of `anchor_size` strides, has an IoU above mean plus standard deviation over the candidates, and whose point
    is inside the true box. Zhang et al., https://arxiv.org/abs/1912.02424.
    """
    half = raw.strides[:, None] * (anchor_size / 2)
    ious = pairwise_iou(truths.boxes, torch.cat([raw.points - half, raw.points + half], -1))  # [B, N, A]
    nearest = _nearest_anchors(truths.boxes, raw, top_k)  # [B, N, candidates]
    # The threshold adapts to each true box: mean plus standard deviation of the IoUs of its candidates.
    overlaps = ious.gather(2, nearest)
    is_positive = overlaps > overlaps.mean(-1, keepdim=True) + overlaps.std(-1, keepdim=True)
    is_positive &= contains(truths.boxes[:, :, None], raw.points[nearest]) & truths.exist[:, :, None]
    # Each anchor has at most one true box; the score says how well it already predicts that box.
    fg_mask, truth_index = _resolve_conflicts(nearest, is_positive, ious)
    true_boxes = truths.boxes.gather(1, truth_index[..., None].expand(-1, -1, 4))  # [B, A, 4]
    return Assigned(fg_mask, truth_index, iou(true_boxes, predicted) * fg_mask, nearest[0].numel(), is_static=True)


def _nearest_anchors(boxes: Tensor, raw: Raw, top_k: int) -> Tensor:  # [B, N, 4] -> [B, N, candidates]
    """Indices of the anchors nearest to the centre of each box, up to `top_k` per level."""
    centres = (boxes[..., None, :2] + boxes[..., None, 2:]) / 2  # [B, N, 1, 2]
    x, y = raw.points.unbind(-1)
    # Levels have anchors of very different density: candidates are chosen per level.
    distances = (centres[..., 0] - x).square() + (centres[..., 1] - y).square()  # [B, N, A]
    nearest, first = [], 0
    for level in torch.split(distances, list(raw.num_per_level), dim=-1):
        nearest.append(level.topk(min(top_k, level.shape[-1]), largest=False).indices + first)
        first += level.shape[-1]
    return torch.cat(nearest, -1)


def assign_task_aligned(
    truths: Truths, predicted: Tensor, raw: Raw, *, top_k: int, alpha: float, beta: float, center_radius: float | None = None
) -> Assigned:
    """Task-aligned assignment (TAL), by the predictions of a network.

    The alignment of an anchor with a true box is probability ** `alpha` * IoU ** `beta`, of the class of the box and the
    prediction [B, A, 4]. Positive are the `top_k` best anchors inside the box. Their score is the alignment, scaled per box so
    that the maximum is the highest IoU of its positives. Feng et al., TOOD, https://arxiv.org/abs/2108.07755.

    With `center_radius` (PP-YOLOE-SOD), anchors within that many strides of the centre of the box are candidates as well, since
    a box may be smaller than a stride; they come first for boxes without an anchor inside.
    """
    ious = pairwise_iou(truths.boxes, predicted)  # [B, N, A]
    # Alignment t = p ** alpha * IoU ** beta, with p the probability of the class of the true box.
    classes = truths.classes[:, :, None].expand_as(ious)
    alignments = raw.logits.to(ious.dtype).transpose(1, 2).gather(1, classes).sigmoid_().pow_(alpha).mul_(ious.pow(beta))
    inside = contains(truths.boxes[:, :, None], raw.points)
    # Only anchors inside a box can be positive, however well they are aligned.
    ranking, possible = alignments.where(inside, 0), inside
    if center_radius is not None:
        # Adding 1 puts anchors near the centre first for boxes that contain none: alignments are at most 1.
        centres = (truths.boxes[..., None, :2] + truths.boxes[..., None, 2:]) / 2  # [B, N, 1, 2]
        near = (center_radius * raw.strides - (raw.points - centres).abs().amax(-1)) > EPSILON  # [B, N, A]
        ranking, possible = alignments + (near & ~inside.any(-1, keepdim=True)), inside | near
    # The top_k best anchors per true box; padding claims none.
    best = ranking.topk(min(top_k, inside.shape[-1])).indices
    claims = possible.gather(2, best) & truths.exist[:, :, None]
    rivals = ious if center_radius is None else ious.where(torch.zeros_like(inside).scatter_(2, best, claims), 0)
    fg_mask, truth_index = _resolve_conflicts(best, claims, rivals)
    # Target score: alignment, scaled per true box so that its best anchor gets the highest IoU (TOOD, section 3.2).
    alignment, overlap = (of.gather(1, truth_index[:, None]).squeeze(1) * fg_mask for of in (alignments, ious))  # [B, A]
    none = alignment.new_zeros(truths.exist.shape)
    highest_alignment, highest_overlap = (
        none.scatter_reduce(1, truth_index, of, 'amax').gather(1, truth_index) for of in (alignment, overlap)
    )
    score = alignment / (highest_alignment + EPSILON) * highest_overlap
    return Assigned(fg_mask, truth_index, score, best[0].numel())


def _resolve_conflicts(candidates: Tensor, claims: Tensor, ious: Tensor) -> tuple[Tensor, Tensor]:
    """Foreground mask, bool [B, A], and true box of each anchor, int64 [B, A].

    `candidates`: different anchors [B, N, k] per box, `claims`: bool [B, N, k], where they are candidates; `ious`: [B, N, A].
    An anchor that is a candidate for several boxes goes to the box of the highest IoU among all boxes of the image, as in
    PaddleDetection: even if it is not a candidate for that box.
    """
    B, N, A = ious.shape
    anchors, numbers = candidates.flatten(1), torch.arange(N, device=ious.device)[:, None]
    # The first and the last box of each anchor; N and -1 for those without one.
    first = anchors.new_full((B, A), N).scatter_reduce(1, anchors, numbers.where(claims, N).flatten(1), 'amin')
    last = anchors.new_full((B, A), -1).scatter_reduce(1, anchors, numbers.where(claims, -1).flatten(1), 'amax')
    is_contested, truth_index = first < last, last.clamp(min=0)
    # At most every second claim: only these anchors, and others up to that number, are compared with all boxes.
    few = (~is_contested).byte().argsort(dim=1, stable=True)[:, : anchors.shape[1] // 2]  # [B, few]
    nearest = ious.gather(2, few[:, None].expand(-1, N, -1)).argmax(1)
    return last >= 0, truth_index.scatter(1, few, nearest.where(is_contested.gather(1, few), truth_index.gather(1, few)))
