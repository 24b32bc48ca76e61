"""Protocol of segmentation losses, and helpers that they share. Shapes: B batch, K classes."""

from typing import Protocol

import torch
from torch import Tensor

from phalanx.families.task import Term
from phalanx.parallel.step import WholeStep
from phalanx.system.memory import constant


class PixelLoss(Protocol):
    """Loss of one output. Its defaults: a mean over images, for any number of classes."""

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:
        """Return the loss of logits [B, K, H, W] against labels [B, H, W], as a part of the whole step."""

    def weights(self, labels: Tensor) -> Tensor | None:
        """Return the weight [] (float64) of the Term for labels [B, H, W]; None if it depends on outputs of the whole step."""
        return count_samples(labels)

    def check(self, num_classes: int) -> None:
        """Raise ValueError if the options do not fit `num_classes`."""
        return


def check_class_weights(class_weights: tuple[float, ...] | None, num_classes: int) -> None:
    """Raise ValueError unless `class_weights` are None or one per class."""
    if class_weights is not None and len(class_weights) != num_classes:
        raise ValueError(
            f'class_weights has {len(class_weights)} values, but there are {num_classes} classes: give one per class'
        )


def count_samples(labels: Tensor) -> Tensor:
    """Return the number of images [] (float64), the weight of a loss that is a mean over images."""
    return labels.new_full((), len(labels), dtype=torch.float64)


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Return `labels` [B, H, W] as one-hot masks, bool [B, K, H, W]; void belongs to no class."""
    # Void (255) equals no class.
    return labels.unsqueeze(1) == torch.arange(num_classes, device=labels.device)[:, None, None]


def class_weight_tensor(logits: Tensor, class_weights: tuple[float, ...] | None) -> Tensor | None:
    """Return `class_weights` as a tensor [K] of the dtype and device of `logits` [B, K, H, W]. Raises ValueError unless K."""
    check_class_weights(class_weights, logits.shape[1])
    return None if class_weights is None else constant(class_weights, logits.dtype, logits.device)
