"""Pixel-wise cross-entropy. Shapes: B batch, K classes."""

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
from phalanx.system.memory import constant

EPSILON = 1e-8  # added to the divisor per pixel, as in PaddleSeg: a batch without valid pixels costs 0, not 0/0


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(PixelLoss):
    """Mean cross-entropy over valid pixels, weighted by the `class_weights` of their classes, as in PaddleSeg.

    Raises ValueError for a `top_k` outside (0, 1], and for `class_weights` that are not one per class.
    """

    class_weights: tuple[float, ...] | None = None
    avg_non_ignore: bool = True  # False: divide by all pixels, void ones included
    top_k: float = 1.0  # use only this share of the pixels of the step, those of the largest cross-entropy

    def __post_init__(self) -> None:
        if not 0 < self.top_k <= 1:
            raise ValueError(f'top_k is {self.top_k}; it must be a share of the pixels, above 0 and at most 1')

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:  # [B, K, H, W], [B, H, W]
        logits = at_least_float32(logits)
        class_weights = class_weight_tensor(logits, self.class_weights)
        # Without `top_k`, the divisor follows from the labels alone.
        if (weight := self.weights(labels)) is not None:
            total = F.cross_entropy(logits, labels, class_weights, ignore_index=VOID, reduction='sum')
            return Term(total, weight)
        losses = F.cross_entropy(logits, labels, class_weights, ignore_index=VOID, reduction='none')
        with torch.no_grad():
            share, weights = self._keep_hardest(losses, whole), self._weights(labels)
        return Term((losses * share).sum(), (weights * share).sum() + EPSILON * share.sum())

    @torch.no_grad()
    def weights(self, labels: Tensor) -> Tensor | None:
        return self._weights(labels).sum(dtype=torch.float64) + EPSILON * labels.numel() if self.top_k == 1 else None

    def check(self, num_classes: int) -> None:
        check_class_weights(self.class_weights, num_classes)

    def _weights(self, labels: Tensor) -> Tensor:
        """Return the weight of each pixel in the divisor, [B, H, W]."""
        in_divisor = labels != VOID if self.avg_non_ignore else torch.ones_like(labels, dtype=torch.bool)
        if self.class_weights is None:
            return in_divisor
        # Void is 255, beyond the table: look up class 0 there; the mask makes it 0.
        class_weights = constant(self.class_weights, torch.float32, labels.device)
        return in_divisor * class_weights[labels.where(labels != VOID, 0)]

    def _keep_hardest(self, losses: Tensor, whole: WholeStep) -> Tensor:
        """Return the share of each pixel [B, H, W]: 1 above the k-th largest loss of the step, 0 below, a fraction at it."""
        pixels = losses[0].numel() * whole.count(len(losses))
        # k of the whole step, over all ranks.
        k = torch.full((), max(int(self.top_k * pixels), 1), device=losses.device)
        cutoff, share = kth_largest(losses, torch.ones_like(losses, dtype=torch.bool), k, whole)
        # Equal losses share the rest of k, so that the result does not depend on their order.
        return (losses > cutoff) + (losses == cutoff) * share
