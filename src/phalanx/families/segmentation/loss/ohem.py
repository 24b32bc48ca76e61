"""Online hard example mining (OHEM) for cross-entropy. Shapes: B batch, K classes."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.loss.pixel_loss import PixelLoss, check_class_weights, class_weight_tensor
from phalanx.families.task import Term
from phalanx.nn.precision import at_least_float32
from phalanx.parallel.hardest import kth_largest
from phalanx.parallel.step import WholeStep

EPSILON = 1e-5  # added to the divisor per pixel, as in PaddleSeg


@dataclass(frozen=True, kw_only=True)
class OhemCrossEntropy(PixelLoss):
    """Mean cross-entropy over the hard pixels of the whole step, as in PaddleSeg.

    A pixel is hard if the probability of its true class is below `threshold`, or below that of the `min_kept`-th least probable
    pixel if this is larger. `min_kept` is `min_kept_per_sample` times the samples of the step, rounded; if it is 0, or at least
    the number of valid pixels, all of these are hard. (PaddleSeg's `min_kept` is per rank.)

    Shrivastava et al., https://arxiv.org/abs/1604.03540. Raises ValueError for a `threshold` outside (0, 1], a negative
    `min_kept_per_sample`, and for `class_weights` that are not one per class.
    """

    threshold: float = 0.7
    min_kept_per_sample: float
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f'threshold is {self.threshold}; it must be a probability above 0')
        if self.min_kept_per_sample < 0:
            raise ValueError(f'min_kept_per_sample is {self.min_kept_per_sample}; it must be a number of pixels, at least 0')

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:  # [B, K, H, W], [B, H, W]
        logits = at_least_float32(logits)
        class_weights = class_weight_tensor(logits, self.class_weights)
        losses = F.cross_entropy(logits, labels, ignore_index=VOID, reduction='none')  # [B, H, W]
        with torch.no_grad():
            is_hard = self._find_hard(losses, labels, whole)
        # Hard pixels are chosen by the unweighted loss; their loss is then weighted.
        weighted = losses if class_weights is None else losses * class_weights[labels.where(labels != VOID, 0)]
        return Term((weighted * is_hard).sum(), is_hard.sum(dtype=losses.dtype) + EPSILON * labels.numel())

    def weights(self, labels: Tensor) -> None:
        """None: the number of hard pixels depends on the outputs for the whole step."""

    def check(self, num_classes: int) -> None:
        check_class_weights(self.class_weights, num_classes)

    def _find_hard(self, losses: Tensor, labels: Tensor, whole: WholeStep) -> Tensor:
        """Return the mask of hard pixels, bool [B, H, W].

        The probability of the true class is exp(-loss), so the least probable pixels are those with the largest loss.
        """
        # Counted over all ranks: `min_kept` refers to the whole step.
        valid = labels != VOID
        pixels = whole.sum(valid.sum())
        min_kept = torch.full_like(pixels, round(self.min_kept_per_sample * whole.count(len(labels))))
        kth, _ = kth_largest(losses, valid, min_kept, whole)
        # A larger cutoff would leave out pixels below the probability `threshold`.
        cutoff = kth.clamp(max=-math.log(self.threshold))
        is_mined = (min_kept > 0) & (min_kept < pixels)
        return valid & ((losses > cutoff) | ~is_mined)
