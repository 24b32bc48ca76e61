"""Heads for text detection: differentiable binarization.

Liao et al., Real-time Scene Text Detection with Differentiable Binarization, https://arxiv.org/abs/1911.08947. Layer order and
initial weights as in PaddleOCR. Shapes: B batch, C channels; h and w are a quarter of the image's H and W.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.text_detection.models.maps import Maps, RefinedMaps
from phalanx.nn.layers import ConvBNReLU, initialise_as_paddle
from phalanx.nn.precision import at_least_float32
from phalanx.parallel.norms import BatchNorm2d

NORM_BIAS = 1e-4  # of fresh norms


class DBHead(nn.Module):
    """A map [B, C, h, w] -> Maps. The threshold is looked for in training alone, where it teaches the rest what a border is."""

    def __init__(self, in_channels: int, *, kernel_size: int = 3, steepness: float = 50) -> None:
        """`kernel_size`: of the first convolution; `steepness`: of the binary map, k in the paper."""
        super().__init__()
        self.shrink = Enlarge(in_channels, kernel_size)
        self.threshold = Enlarge(in_channels, kernel_size)
        self.steepness = steepness

    def forward(self, x: Tensor) -> Maps | RefinedMaps:
        shrink = probabilities(self.shrink.classify(self.shrink.features(x)))
        if not self.training:
            return Maps(shrink)
        threshold, binary = self.thresholds(x, shrink)
        return Maps(shrink, threshold, binary)

    def thresholds(self, x: Tensor, shrink: Tensor) -> tuple[Tensor, Tensor]:
        """The threshold and the binary map [B, 1, H, W]."""
        threshold = probabilities(self.threshold.classify(self.threshold.features(x)))
        return threshold, torch.sigmoid(self.steepness * (shrink - threshold))


class PFHeadLocal(DBHead):
    """A head that looks a second time, with the features of half the size of the image: the PFHead of PP-OCRv4.

    In training the second look is the shrink map, and the first one makes the binary map; in evaluation their mean is taken.
    """

    def __init__(self, in_channels: int, *, share: int, kernel_size: int = 3, steepness: float = 50) -> None:
        """`share`: the channels of the second look are those of the map divided by it, 8 (small) or 4 (large) as published."""
        super().__init__(in_channels, kernel_size=kernel_size, steepness=steepness)
        self.look = ConvBNReLU(in_channels // 4 + 1, in_channels // share, 3)
        self.decide = nn.Conv2d(in_channels // share, 1, 1)
        for part in (self.look, self.decide):
            initialise_as_paddle(part)

    def forward(self, x: Tensor) -> Maps | RefinedMaps:
        features = self.shrink.features(x)  # [B, C / 4, H / 2, W / 2]
        coarse = probabilities(self.shrink.classify(features))
        near = torch.cat([coarse, F.interpolate(features, coarse.shape[-2:], mode='nearest')], dim=1)
        refined = probabilities(self.decide(self.look(near)))
        if not self.training:
            return Maps((coarse + refined) / 2)
        threshold, binary = self.thresholds(x, coarse)
        return RefinedMaps(refined, threshold, binary)


class Enlarge(nn.Module):
    """A map [B, C, h, w] -> features [B, C / 4, H / 2, W / 2] -> logits [B, 1, H, W]."""

    def __init__(self, in_channels: int, kernel_size: int) -> None:
        super().__init__()
        channels = in_channels // 4
        self.conv = ConvBNReLU(in_channels, channels, kernel_size)
        initialise_as_paddle(self)
        self.twice = enlarging(channels, channels)
        self.norm = BatchNorm2d(channels)
        self.classify = enlarging(channels, 1)
        for norm in (self.conv.norm, self.norm):
            nn.init.constant_(norm.bias, NORM_BIAS)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.twice(self.conv(x))), inplace=True)


def enlarging(in_channels: int, out_channels: int) -> nn.ConvTranspose2d:
    """A transposed convolution that doubles height and width."""
    layer = nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity='relu')
    bound = 1 / math.sqrt(in_channels)
    assert layer.bias is not None
    nn.init.uniform_(layer.bias, -bound, bound)
    return layer


def probabilities(logits: Tensor) -> Tensor:
    """In float32 also where the network is in half precision, which has few numbers near 1."""
    return at_least_float32(logits).sigmoid()
