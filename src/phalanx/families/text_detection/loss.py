"""Losses of text detection: functions of the training maps of a network and their targets that return named Terms.

Shapes: B batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.outputs import check_fields
from phalanx.families.task import Loss, Term
from phalanx.families.text_detection.models.maps import Maps, RefinedMaps
from phalanx.families.text_detection.targets import Targets
from phalanx.parallel.hardest import kth_largest
from phalanx.parallel.step import WholeStep

EPSILON = 1e-6  # in every divisor, as in PaddleOCR


@dataclass(frozen=True, kw_only=True)
class DbLoss:
    """Loss of DB as in PaddleOCR, with the terms `shrink`, `threshold`, `binary`, and `coarse` for RefinedMaps.

    - `shrink`, weighted by `alpha`: the main loss of the shrink map (probability map of the paper). `dice`: 1 - 2 |p t| /
      (|p| + |t|) over all valid pixels of the step together. `bce`: mean binary cross-entropy over valid pixels; with
      `balanced`, over all text pixels and the `ohem_ratio` times as many background pixels of largest loss (online hard
      example mining), or all of them if there are fewer. (For `dice`, `balanced` only changes the value of a step without
      text, to 0; its gradient is 0 either way.) `dice_focal`: dice plus the term `shrink_focal`, the mean focal loss with
      `focal_alpha` and `focal_gamma` over valid pixels (Lin et al., https://arxiv.org/abs/1708.02002); PP-OCRv6's.
    - `threshold`, weighted by `beta`: mean L1 distance between the threshold map and its target, over valid pixels.
    - `binary`: dice loss of the approximate binary map; with `dice_focal`, plus the term `binary_focal`.
    - `coarse`: main loss of the binary map, which comes from the coarse prediction of a PFHeadLocal.

    The main loss of Liao et al., https://arxiv.org/abs/1911.08947, is cross-entropy; PaddleOCR's configurations use dice.
    PaddleOCR computes fractions over the batch of each rank; here they span the whole step, so the result does not depend on
    the number of ranks. Raises ValueError for negative weights and ratios.
    """

    main: Literal['dice', 'bce', 'dice_focal'] = 'dice'
    balanced: bool = True
    alpha: float = 5.0
    beta: float = 10.0
    ohem_ratio: float = 3.0
    focal_alpha: float = 0.25
    focal_gamma: float = 2.0

    def __post_init__(self) -> None:
        for name in ('alpha', 'beta', 'ohem_ratio', 'focal_alpha', 'focal_gamma'):
            if not getattr(self, name) >= 0:
                raise ValueError(f'{name} must be at least 0, got {getattr(self, name)}')

    def __call__(self, maps: Maps | RefinedMaps, targets: Targets[Tensor], whole: WholeStep) -> Loss:
        """Return the terms for the maps of a network in training. They couple the samples of a step: `Task.sees_whole_step`."""
        B, H, W = targets.shrink_map.shape
        check_fields('training', maps, dict.fromkeys(('shrink', 'threshold', 'binary'), (B, 1, H, W)))
        # The outputs lose their channel axis; the targets have none.
        assert maps.threshold is not None and maps.binary is not None
        # P, T and B of the paper.
        shrink, threshold, binary = (each.squeeze(1) for each in (maps.shrink, maps.threshold, maps.binary))
        truth, valid = targets.shrink_map, targets.shrink_mask
        terms = {
            'shrink': scale_term(self.alpha, self.main_loss(shrink, truth, valid, whole)),
            'threshold': scale_term(
                self.beta, mean_term((threshold - targets.threshold_map).abs(), targets.threshold_mask, whole)
            ),
            'binary': dice_term(binary, truth, valid, whole),
        }
        if self.main == 'dice_focal':
            terms['shrink_focal'] = scale_term(self.alpha, self.focal_term(shrink, truth, valid, whole))
            terms['binary_focal'] = self.focal_term(binary, truth, valid, whole)
        if isinstance(maps, RefinedMaps):
            terms['coarse'] = self.main_loss(binary, truth, valid, whole)
        return terms

    def weights(self, targets: Targets[Tensor]) -> None:
        """Return None: the terms are fractions over the whole step, which `__call__` sums itself."""

    def main_loss(self, probabilities: Tensor, truth: Tensor, valid: Tensor, whole: WholeStep) -> Term:
        """Return the main loss of `probabilities` [B, H, W], dice or BCE."""
        if self.main != 'bce':
            return dice_term(probabilities, truth, valid, whole, none=0.0 if self.balanced else 1.0)
        with torch.autocast('cuda', enabled=False):  # autocast rejects this loss, in float32 too
            losses = F.binary_cross_entropy(probabilities, truth.to(probabilities.dtype), reduction='none')
        if not self.balanced:
            return mean_term(losses, valid, whole)
        with torch.no_grad():
            # Which pixels count is a constant for the gradient.
            weights = self.mining_weights(losses, truth, valid, whole)
        return mean_term(losses, weights, whole)

    def focal_term(self, probabilities: Tensor, truth: Tensor, valid: Tensor, whole: WholeStep) -> Term:
        """Return the mean focal loss of `probabilities` [B, H, W] over valid pixels."""
        right = torch.where(truth > 0.5, probabilities, 1 - probabilities).clamp(EPSILON, 1 - EPSILON)
        weights = torch.where(truth > 0.5, self.focal_alpha, 1 - self.focal_alpha)
        return mean_term(-weights * (1 - right) ** self.focal_gamma * right.log(), valid, whole)

    def mining_weights(self, losses: Tensor, truth: Tensor, valid: Tensor, whole: WholeStep) -> Tensor:
        """Return weights [B, H, W]: 1 for text and for the hardest background pixels; ties at the cutoff share the rest."""
        # Ignored pixels are neither.
        text, background = truth * valid, (1 - truth) * valid
        # The number of hard pixels follows from the counts of the step, not from those of this rank.
        num_text, num_background = whole.sum(torch.stack([each.sum(dtype=torch.float64) for each in (text, background)]))
        k = torch.minimum(num_background, num_text * self.ohem_ratio).long()
        # Ties get equal fractions: choosing among them would depend on the order of the pixels.
        cutoff, share = kth_largest(losses, background > 0, k.clamp(min=1), whole)
        hard = torch.where(losses == cutoff, share, (losses > cutoff).to(losses.dtype))
        return torch.where(k > 0, text + background * hard, text)


def dice_term(probabilities: Tensor, truth: Tensor, valid: Tensor, whole: WholeStep, *, none: float = 1.0) -> Term:
    """Return 1 - 2 |p t| / (|p| + |t|) over the valid pixels of the step, for p, t and valid [B, H, W]; `none` if no t is 1.

    The value is not a sum over samples, but its gradient is. With the overlap I and the areas A of the step, and i and a those
    of this part, it is the gradient of -2 i / A + 2 a I / A². So each part gets that gradient, and of the value a share in
    proportion to its samples.
    """
    # Sums of this part, then of the step.
    own = torch.stack([(each * valid).sum() for each in (probabilities * truth, probabilities + truth, truth)])
    overlap, areas, text = whole.sum(own).unbind()
    areas = areas + EPSILON
    # A term with the gradient of this part and the value 0, added to a constant of the right value.
    with_gradient = 2 * (overlap / areas * own[1] - own[0]) / areas
    share = len(truth) / whole.count(len(truth))
    value = torch.where(text > 0, 1 - 2 * overlap / areas, none)
    return Term(share * value + (with_gradient - with_gradient.detach()), truth.new_full((), share, dtype=torch.float64))


def mean_term(losses: Tensor, weights: Tensor, whole: WholeStep) -> Term:
    """Return the weighted mean of `losses` over the step, both [B, H, W]; 0 if all weights are 0."""
    # EPSILON once per step: each rank adds its share of it.
    share = len(losses) / whole.count(len(losses))
    return Term((losses * weights).sum(), weights.sum(dtype=torch.float64) + EPSILON * share)


def scale_term(factor: float, term: Term) -> Term:
    """Multiply a term by `factor`."""
    return Term(factor * term.total, term.weight)


class TextDetectionLoss(Protocol):
    """Protocol of a text detection loss."""

    def __call__(self, maps: Maps | RefinedMaps, targets: Targets[Tensor], whole: WholeStep) -> Loss:
        """Return the terms for the maps of a network in training, a part of the step `whole`."""

    def weights(self, targets: Targets[Tensor]) -> Mapping[str, Tensor] | None:
        """Return the weights [] (float64) of the terms, or None if they depend on the outputs for the whole step."""


LOSSES: dict[str, type[TextDetectionLoss]] = {'db': DbLoss}
