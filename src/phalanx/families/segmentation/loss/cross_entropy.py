"""Cross-entropy of every valid pixel. Shapes: B batch, K classes."""

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
from phalanx.system.memory import to_device

EPSILON = 1e-8  # a pixel's addition to the weight, as in PaddleSeg: a batch without a valid pixel costs 0, not 0/0


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(PixelLoss):
    """The mean cross-entropy over valid pixels, as in PaddleSeg; each counts as much as `class_weights` says of its class.

    Raises ValueError for a `top_k` outside (0, 1], and when `class_weights` are not one for each class.
    """

    class_weights: tuple[float, ...] | None = None
    avg_non_ignore: bool = True  # False: divide by all pixels, void ones too
    top_k: float = 1.0  # count only this share of all pixels of the step, those of the largest cross-entropy

    def __post_init__(self) -> None:
        if not 0 < self.top_k <= 1:
            raise ValueError(f'top_k is {self.top_k}; it must be a share of the pixels, above 0 and at most 1')

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:  # [B, K, H, W], [B, H, W]
        logits = at_least_float32(logits)
        class_weights = class_weight_tensor(logits, self.class_weights)
        if (weight := self.weights(labels)) is not None:
            total = F.cross_entropy(logits, labels, class_weights, ignore_index=VOID, reduction='sum')
            return Term(total, weight)
        losses = F.cross_entropy(logits, labels, class_weights, ignore_index=VOID, reduction='none')
        with torch.no_grad():
            kept, weights = self._keep_hardest(losses, whole), self._weights(labels)
        return Term((losses * kept).sum(), (weights * kept).sum() + EPSILON * kept.sum())

    @torch.no_grad()
    def weights(self, labels: Tensor) -> Tensor | None:
        return self._weights(labels).sum(dtype=torch.float64) + EPSILON * labels.numel() if self.top_k == 1 else None

    def check(self, num_classes: int) -> None:
        check_class_weights(self.class_weights, num_classes)

    def _weights(self, labels: Tensor) -> Tensor:
        """How much each pixel counts in the divisor, [B, H, W]."""
        in_divisor = labels != VOID if self.avg_non_ignore else torch.ones_like(labels, dtype=torch.bool)
        if self.class_weights is None:
            return in_divisor
        class_weights = to_device(torch.tensor(self.class_weights), labels.device)
        return in_divisor * class_weights[labels.where(labels != VOID, 0)]

    def _keep_hardest(self, losses: Tensor, whole: WholeStep) -> Tensor:
        """How much of each pixel is kept, [B, H, W]: 1 above the k-th loss of the step, a share at it, 0 below."""
        pixels = losses[0].numel() * whole.count(len(losses))
        k = torch.full((), max(int(self.top_k * pixels), 1), device=losses.device)
        cutoff, share = kth_largest(losses, torch.ones_like(losses, dtype=torch.bool), k, whole)
        return (losses > cutoff) + (losses == cutoff) * share
