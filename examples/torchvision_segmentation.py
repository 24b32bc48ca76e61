"""A segmentation network of torchvision (LR-ASPP, Howard et al., arXiv:1905.02244), an augmentation of torchvision's, a loss.

phalanx train --plugin examples/torchvision_segmentation.py pp_liteseg_digits --set model.name=tv_lraspp loss=[focal]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.segmentation import lraspp_mobilenet_v3_large
from torchvision.transforms import v2

from phalanx.data.external import seed_global_generators
from phalanx.families.segmentation.loss import PixelLoss
from phalanx.families.task import Term
from phalanx.parallel.norms import convert_batch_norms
from phalanx.parallel.step import WholeStep

VOID = 255  # the label of pixels that do not count


class LRASPP(nn.Module):
    """images [B, 3, H, W] -> logits, as a list in training and evaluation."""

    num_outputs = 1

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.network = convert_batch_norms(
            lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=num_classes)
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        return [self.network(images)['out']]


def tv_lraspp(num_classes: int) -> LRASPP:
    return LRASPP(num_classes)


@dataclass(frozen=True, kw_only=True)
class ColorJitter:
    """Torchvision's, drawn from the seed of the sample."""

    brightness: float = 0.2
    hue: float = 0.1

    def __call__(self, image: Any, labels: Any, rng: np.random.Generator) -> tuple[Any, Any]:
        with seed_global_generators(rng):
            changed = v2.ColorJitter(brightness=self.brightness, hue=self.hue)(torch.from_numpy(image).permute(2, 0, 1))
        return changed.permute(1, 2, 0).contiguous().numpy(), labels


@dataclass(frozen=True, kw_only=True)
class Focal(PixelLoss):
    """The mean over valid pixels of (1 - p)^gamma * -log p, p being the probability of the true class (arXiv:1708.02002)."""

    gamma: float = 2.0

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:
        losses = F.cross_entropy(logits.float(), labels, ignore_index=VOID, reduction='none')  # [B, H, W]
        return Term(((1 - (-losses).exp()) ** self.gamma * losses).sum(), self.weights(labels))

    def weights(self, labels: Tensor) -> Tensor:
        return (labels != VOID).sum(dtype=torch.float64)


PLUGIN = {
    'segmentation': {
        'models': {'tv_lraspp': tv_lraspp},
        'transforms': {'color_jitter': ColorJitter},
        'losses': {'focal': Focal},
    }
}
