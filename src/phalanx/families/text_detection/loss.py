"""Losses of text detection: called with the maps of a network in training and their targets, they give named Terms.

Shapes: B batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.task import Loss, Term
from phalanx.families.text_detection.models.maps import Maps, RefinedMaps
from phalanx.families.text_detection.targets import Targets
from phalanx.parallel.hardest import kth_largest
from phalanx.parallel.step import WholeStep

EPSILON = 1e-6  # in every divisor, as in PaddleOCR


@dataclass(frozen=True, kw_only=True)
class DbLoss:
    """The terms of DB, as in PaddleOCR: `shrink`, `threshold`, `binary`, and `coarse` for RefinedMaps.

    - `shrink`, times `alpha`: the main loss of the shrink map. `dice` is 1 - 2 |p t| / (|p| + |t|) over all valid pixels of
      the step at once. `bce` is the mean binary cross-entropy over valid pixels; `balanced`, over those of text and, of
      those without text, the `ohem_ratio` times as many with the largest losses, or all when there are fewer. (`balanced`
      dice is the same but for a step without text, where its value is 0; there is no gradient then in any case.)
    - `threshold`, times `beta`: the mean distance of the threshold map from its target, over its valid pixels.
    - `binary`: the dice loss of the binary map.
    - `coarse`: the main loss of the binary map, which comes from the first look of a PFHeadLocal.

    Liao et al., https://arxiv.org/abs/1911.08947, has cross-entropy as its main loss, PaddleOCR's configurations have dice.
    What PaddleOCR computes over the batch of a rank is computed over the whole step here, so the cut does not matter.
    Raises ValueError for negative weights and ratios.
    """

    main: Literal['dice', 'bce'] = 'dice'
    balanced: bool = True
    alpha: float = 5.0
    beta: float = 10.0
    ohem_ratio: float = 3.0

    def __post_init__(self) -> None:
        for name in ('alpha', 'beta', 'ohem_ratio'):
            if not getattr(self, name) >= 0:
                raise ValueError(f'{name} must be at least 0, got {getattr(self, name)}')

    def __call__(self, maps: Maps | RefinedMaps, targets: Targets[Tensor], whole: WholeStep) -> Loss:
        """`maps` are those of a network in training. The samples of a step see one another: see `Task.sees_whole_step`."""
        assert maps.threshold is not None and maps.binary is not None
        shrink, threshold, binary = (each.squeeze(1) for each in (maps.shrink, maps.threshold, maps.binary))
        truth, valid = targets.shrink_map, targets.shrink_mask
        terms = {
            'shrink': times(self.alpha, self.main_term(shrink, truth, valid, whole)),
            'threshold': times(self.beta, mean((threshold - targets.threshold_map).abs(), targets.threshold_mask, whole)),
            'binary': dice(binary, truth, valid, whole),
        }
        if isinstance(maps, RefinedMaps):
            terms['coarse'] = self.main_term(binary, truth, valid, whole)
        return terms

    def weights(self, targets: Targets[Tensor]) -> None:
        """The terms are fractions over the whole step, which this loss asks for."""

    def main_term(self, probabilities: Tensor, truth: Tensor, valid: Tensor, whole: WholeStep) -> Term:
        """The main loss of `probabilities` [B, H, W]."""
        if self.main == 'dice':
            return dice(probabilities, truth, valid, whole, none=0.0 if self.balanced else 1.0)
        with torch.autocast('cuda', enabled=False):  # which refuses this loss, in float32 too
            losses = F.binary_cross_entropy(probabilities, truth.to(probabilities.dtype), reduction='none')
        if not self.balanced:
            return mean(losses, valid, whole)
        with torch.no_grad():
            kept = self.kept(losses, truth, valid, whole)
        return mean(losses, kept, whole)

    def kept(self, losses: Tensor, truth: Tensor, valid: Tensor, whole: WholeStep) -> Tensor:
        """How much of each pixel counts, [B, H, W]: text wholly, the hardest others, and a share of those that tie for last."""
        text, other = truth * valid, (1 - truth) * valid
        pixels, others = whole.sum(torch.stack([each.sum(dtype=torch.float64) for each in (text, other)]))
        k = torch.minimum(others, pixels * self.ohem_ratio).long()
        cutoff, share = kth_largest(losses, other > 0, k.clamp(min=1), whole)
        hard = torch.where(losses == cutoff, share, (losses > cutoff).to(losses.dtype))
        return torch.where(k > 0, text + other * hard, text)


def dice(probabilities: Tensor, truth: Tensor, valid: Tensor, whole: WholeStep, *, none: float = 1.0) -> Term:
    """1 - 2 |p t| / (|p| + |t|) over the valid pixels of the step, of p, t and valid [B, H, W]; `none` where no t is 1.

    It is no sum over the samples, but its gradient is: with I the overlap and A the areas of the step, and i and a those of a
    part, that of -2 i / A + 2 a I / A². So a part has that gradient, and of the value its share of the samples.
    """
    own = torch.stack([(each * valid).sum() for each in (probabilities * truth, probabilities + truth, truth)])
    overlap, areas, text = whole.sum(own).unbind()
    areas = areas + EPSILON
    sloped = 2 * (overlap / areas * own[1] - own[0]) / areas
    share = len(truth) / whole.count(len(truth))
    value = torch.where(text > 0, 1 - 2 * overlap / areas, none)
    return Term(share * value + (sloped - sloped.detach()), truth.new_full((), share, dtype=torch.float64))


def mean(losses: Tensor, weights: Tensor, whole: WholeStep) -> Term:
    """The weighted mean of `losses` over the step, both [B, H, W]; 0 where nothing weighs."""
    share = len(losses) / whole.count(len(losses))
    return Term((losses * weights).sum(), weights.sum(dtype=torch.float64) + EPSILON * share)


def times(factor: float, term: Term) -> Term:
    return Term(factor * term.total, term.weight)


class TextDetectionLoss(Protocol):
    """A loss of text detection."""

    def __call__(self, maps: Maps | RefinedMaps, targets: Targets[Tensor], whole: WholeStep) -> Loss:
        """The loss of the maps of a network in training, as a part of the step that they belong to."""

    def weights(self, targets: Targets[Tensor]) -> Mapping[str, Tensor] | None:
        """The weights [] (float64) of the Terms; None where they depend on the outputs for the whole step."""


LOSSES: dict[str, type[TextDetectionLoss]] = {'db': DbLoss}
