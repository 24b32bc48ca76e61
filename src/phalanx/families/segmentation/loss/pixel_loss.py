"""What every loss of segmentation is. Shapes: B batch, K classes."""

from typing import Protocol

import torch
from torch import Tensor

from phalanx.families.task import Term
from phalanx.parallel.step import WholeStep
from phalanx.system.memory import to_device


class PixelLoss(Protocol):
    """The loss of one output. Its base class: a mean over images, for any number of classes."""

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:
        """The loss of an output [B, K, H, W] against labels [B, H, W], as a part of the step that they belong to."""

    def weights(self, labels: Tensor) -> Tensor | None:
        """The weight [] (float64) of the Term for labels [B, H, W]; None where it depends on the outputs for the whole step."""
        return count_samples(labels)

    def check(self, num_classes: int) -> None:
        """Raises ValueError when the options are not for so many classes."""
        return


def check_class_weights(class_weights: tuple[float, ...] | None, num_classes: int) -> None:
    """Raises ValueError when there are `class_weights` and not one for each class."""
    if class_weights is not None and len(class_weights) != num_classes:
        raise ValueError(f'class_weights has {len(class_weights)} values, but there are {num_classes} classes')


def count_samples(labels: Tensor) -> Tensor:
    """How many images they are, as the weight of a loss that is a mean over images."""
    return labels.new_full((), len(labels), dtype=torch.float64)


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Which of the K classes each pixel of `labels` [B, H, W] is, bool [B, K, H, W]; void is none."""
    return labels.unsqueeze(1) == torch.arange(num_classes, device=labels.device)[:, None, None]


def class_weight_tensor(logits: Tensor, class_weights: tuple[float, ...] | None) -> Tensor | None:
    """`class_weights` as a tensor [K] where the logits [B, K, H, W] are. Raises ValueError when there are not K of them."""
    check_class_weights(class_weights, logits.shape[1])
    return None if class_weights is None else to_device(torch.tensor(class_weights, dtype=logits.dtype), logits.device)
