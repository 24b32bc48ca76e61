"""Terms of detection losses, given an assignment. Shapes: B batch, A anchors, K classes, P = `max_positives`.

Each is divided by the sum of the scores of positive anchors over the whole step, at least 1. (PaddleDetection has a minimum of
1 per rank; here the number of ranks must not matter.)
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.data.boxes import generalised_iou, to_distances
from phalanx.families.detection.decode import Raw
from phalanx.families.detection.loss.assign import Assigned, Truths
from phalanx.families.detection.loss.assigners import Assigner, AtssThenTaskAligned, check_at_least
from phalanx.families.task import Loss, Term

VARIFOCAL_ALPHA, FOCAL_ALPHA = 0.75, 0.25  # alpha of the two losses, their gamma being 2
MARGIN = 0.01  # target distances stay this far below the last bin, so that the next bin exists


class DetectionLoss(ABC):
    """An entry of `loss`: one term or several, of the raw output of the network, the true boxes and an assignment."""

    @abstractmethod
    def __call__(self, raw: Raw, truths: Truths, assigned: Assigned) -> Loss:
        """`raw` is the output of the network, `raw.teacher` that of the teacher in a distillation."""

    @property
    def assigner(self) -> Assigner | None:
        """Own assigner of this loss; None for that of the recipe."""
        return None

    pads_truths: ClassVar[bool] = False  # the network is to get as many true boxes per image as the fullest of the step has

    @property
    def sees_whole_step(self) -> bool:
        """True if the loss of a sample depends on the outputs for other samples of the step, beyond a common weight."""
        return False

    def weights(self, boxes: Sequence[Tensor], classes: Sequence[Tensor]) -> Mapping[str, Tensor] | None:
        """Weights [] of the terms, if targets alone determine them: boxes [n, 4] and classes [n] of each image.

        None if the outputs determine them, as in an assignment by predictions; all terms then share one weight.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class Varifocal(DetectionLoss):
    """The term `cls` of all anchors: varifocal loss, Zhang et al., https://arxiv.org/abs/2008.13367.

    Gradients flow through the weights too, as in PaddleDetection. Raises ValueError for a negative `weight`.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(self, 0, 'weight')

    def __call__(self, raw: Raw, truths: Truths, assigned: Assigned) -> Loss:
        # Positive anchors are weighted by their target, background by alpha * p ** 2: easy background hardly counts.
        logits, targets, at = score_targets(raw, truths, assigned)
        answers = torch.zeros_like(logits, dtype=torch.bool).scatter(2, at, assigned.fg_mask[..., None])
        weights = torch.where(answers, targets, VARIFOCAL_ALPHA * logits.sigmoid().square())
        return {'cls': score_term(self.weight * weighted_cross_entropy(logits, targets, weights), assigned)}


@dataclass(frozen=True, kw_only=True)
class QualityFocal(DetectionLoss):
    """The term `cls` of all anchors: quality focal loss, Li et al., https://arxiv.org/abs/2006.04388.

    With ATSS, targets and background are weighted 1 : 3, as in PaddleDetection. Raises ValueError for a negative `weight`.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(self, 0, 'weight')

    def __call__(self, raw: Raw, truths: Truths, assigned: Assigned) -> Loss:
        logits, targets, _ = score_targets(raw, truths, assigned)
        # Weight |p - target| ** 2: anchors that are right already hardly count.
        weights = (logits.sigmoid() - targets).square()
        if assigned.is_static:
            weights = weights * torch.lerp(1 - targets, targets, FOCAL_ALPHA)
        return {'cls': score_term(self.weight * weighted_cross_entropy(logits, targets, weights), assigned)}


@dataclass(frozen=True, kw_only=True)
class GIoU(DetectionLoss):
    """The term `iou` of the positive anchors: 1 - GIoU, weighted by score; Rezatofighi et al., https://arxiv.org/abs/1902.09630.

    Raises ValueError for a negative `weight`.
    """

    weight: float = 2.5

    def __post_init__(self) -> None:
        check_at_least(self, 0, 'weight')

    def __call__(self, raw: Raw, truths: Truths, assigned: Assigned) -> Loss:
        image, anchor, score = assigned.positives
        ious = generalised_iou(raw.boxes[image, anchor], assigned.true_boxes(truths))
        return {'iou': score_term(self.weight * ((1 - ious) * score).sum(), assigned)}


@dataclass(frozen=True, kw_only=True)
class DistributionFocal(DetectionLoss):
    """The term `dfl` of the positive anchors: distribution focal loss of the distances to the sides, weighted by score.

    Li et al., Generalized Focal Loss, https://arxiv.org/abs/2006.04388. Raises ValueError for a negative `weight`.
    """

    weight: float = 0.5

    def __post_init__(self) -> None:
        check_at_least(self, 0, 'weight')

    def __call__(self, raw: Raw, truths: Truths, assigned: Assigned) -> Loss:
        image, anchor, score = assigned.positives
        # Targets in strides, like the bins.
        targets = to_distances(raw.points[anchor], assigned.true_boxes(truths)) / raw.strides[anchor, None]
        losses = distribution_focal(raw.distances[image, anchor].to(raw.points.dtype), targets, raw.min_distance)
        return {'dfl': score_term(self.weight * (losses * score).sum(), assigned)}


def choose_assigner(losses: Sequence[DetectionLoss], of_recipe: partial[Assigner] | None) -> Assigner:
    """Assigner of a recipe: the chosen one, the one of its losses, or that of PP-YOLOE.

    Raises ValueError if an entry is not a DetectionLoss, and if two assigners contradict each other.
    """
    # Plugins can bring losses of other families, which take other arguments.
    for loss in losses:
        if not isinstance(loss, DetectionLoss):
            name = type(loss).__name__
            raise ValueError(
                f'loss: {name} must extend DetectionLoss of phalanx.families.detection.loss; see docs/extending.md'
            )
    own_assigners = [loss.assigner for loss in losses if loss.assigner is not None]
    if of_recipe is not None and any(own != AtssThenTaskAligned() for own in own_assigners):
        raise ValueError(
            'assigner: the loss has options of an assigner of its own; leave them out, or list its terms, as in '
            '`loss: [varifocal, giou, dfl]`'
        )
    if any(own != own_assigners[0] for own in own_assigners):
        raise ValueError('loss: its entries have different assigners of their own; give all of them the same')
    if of_recipe is not None:
        return of_recipe()
    return own_assigners[0] if own_assigners else AtssThenTaskAligned()


def score_term(total: Tensor, assigned: Assigned) -> Term:
    """Term divided by the sum of the scores, at least 1."""
    return Term(total, assigned.score_sum, least=1.0)


def score_targets(raw: Raw, truths: Truths, assigned: Assigned) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [B, A, K] in float32 or better, their target probabilities, and the class [B, A, 1] of each anchor's true box."""
    logits = raw.logits.to(raw.points.dtype)
    at = truths.classes.gather(1, assigned.truth_index)[..., None]
    return logits, torch.zeros_like(logits).scatter(2, at, assigned.score[..., None]), at


def weighted_cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    return (weights * F.binary_cross_entropy_with_logits(logits, targets, reduction='none')).sum()


def distribution_focal(logits: Tensor, targets: Tensor, min_distance: int) -> Tensor:  # [B, P, 4 * bins], [B, P, 4] -> [B, P]
    """Cross-entropy with the two bins beside each target distance (in strides), weighted by nearness; the mean of 4 sides.

    `min_distance` is the distance of the first bin.
    """
    # Cross-entropy with the two bins around the target y_i <= y <= y_i+1: -((y_i+1 - y) log S_i + (y - y_i) log S_i+1), eq. 6.
    log_shares = logits.view(*targets.shape, -1).log_softmax(-1)
    targets = (targets - min_distance).clamp(0, log_shares.shape[-1] - 1 - MARGIN)  # counted from the first bin
    before = targets.long()
    beyond = targets - before
    low, high = (log_shares.gather(-1, place[..., None]).squeeze(-1) for place in (before, before + 1))  # [B, P, 4]
    return -((1 - beyond) * low + beyond * high).mean(-1)
