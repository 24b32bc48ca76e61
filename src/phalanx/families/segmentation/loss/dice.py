"""Dice loss. Shapes: B batch, K classes, N pixels."""

from dataclasses import dataclass

from torch import Tensor

from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.loss.pixel_loss import (
    PixelLoss,
    check_class_weights,
    class_weight_tensor,
    count_samples,
    one_hot,
)
from phalanx.families.task import Term
from phalanx.nn.precision import at_least_float32
from phalanx.parallel.step import WholeStep

EPSILON = 1e-8  # as in PaddleSeg: avoids 0/0 for an absent class with `smooth` 0


@dataclass(frozen=True, kw_only=True)
class Dice(PixelLoss):
    """Mean over images and classes of 1 - 2 |p t| / (|p| + |t|), weighted by `class_weights`, as in PaddleSeg.

    p [N] is the probability of the class per valid pixel, t [N] its one-hot label; `smooth` is added to numerator and
    denominator. Each image is evaluated by itself, so the result does not depend on how the batch is split. (PaddleSeg changes
    void pixels to class 0 in place, for every loss computed after this one; here they stay void.)

    Milletari et al., V-Net, https://arxiv.org/abs/1606.04797. Raises ValueError for a negative `smooth`, and for
    `class_weights` that are not one per class.
    """

    class_weights: tuple[float, ...] | None = None
    smooth: float = 1.0

    def __post_init__(self) -> None:
        if self.smooth < 0:
            raise ValueError(f'smooth is {self.smooth}; it must be at least 0')

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:  # [B, K, H, W], [B, H, W]
        logits = at_least_float32(logits)
        K = logits.shape[1]
        # Void pixels belong to no class and have no probability.
        valid = (labels != VOID).flatten(1).unsqueeze(1)  # [B, 1, N]
        predicted = logits.softmax(1).flatten(2) * valid  # [B, K, N]
        true = one_hot(labels, K).flatten(2)  # [B, K, N]
        # Per image and class: |p t| and |p| + |t|.
        overlap = (predicted * true).sum(2)  # [B, K]
        areas = predicted.sum(2) + true.sum(2)
        losses = 1 - (2 * overlap + self.smooth) / (areas + self.smooth + EPSILON)
        class_weights = class_weight_tensor(logits, self.class_weights)
        weighted = losses if class_weights is None else losses * class_weights
        return Term(weighted.sum() / K, count_samples(labels))

    def check(self, num_classes: int) -> None:
        check_class_weights(self.class_weights, num_classes)
