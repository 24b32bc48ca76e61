"""Text detection heads: differentiable binarization.

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

NORM_BIAS = 1e-4  # initial bias of batch norms


class DBHead(nn.Module):
    """Head of DB: a feature map [B, C, h, w] -> Maps.

    The threshold map is predicted in training only, where it sharpens the features at the borders of texts.
    """

    def __init__(self, in_channels: int, *, kernel_size: int = 3, steepness: float = 50) -> None:
        """Build the head. `kernel_size`: of the first convolution; `steepness`: k of the approximate step function."""
        super().__init__()
        self.shrink = MapHead(in_channels, kernel_size)  # prob_head (binarize in PaddleOCR)
        self.threshold = MapHead(in_channels, kernel_size)  # thresh_head
        self.steepness = steepness

    def forward(self, x: Tensor) -> Maps | RefinedMaps:
        """Return all maps in training, the shrink map alone in evaluation."""
        shrink = to_probabilities(self.shrink.classify(self.shrink.features(x)))
        if not self.training:
            return Maps(shrink)
        threshold, binary = self.threshold_and_binary(x, shrink)
        return Maps(shrink, threshold, binary)

    def threshold_and_binary(self, x: Tensor, shrink: Tensor) -> tuple[Tensor, Tensor]:
        """Return the threshold map and the approximate binary map, 1 / (1 + exp(-k (P - T))), both [B, 1, H, W]."""
        # B = 1 / (1 + exp(-k (P - T))): differentiable, unlike a threshold.
        threshold = to_probabilities(self.threshold.classify(self.threshold.features(x)))
        return threshold, torch.sigmoid(self.steepness * (shrink - threshold))


class PFHeadLocal(DBHead):
    """PFHead of PP-OCRv4: a DB head that refines its coarse shrink map with features at half the size of the image.

    In training the refined map is the shrink map, and the coarse one gives the binary map; evaluation takes their mean.
    """

    def __init__(self, in_channels: int, *, divisor: int, kernel_size: int = 3, steepness: float = 50) -> None:
        """Build the head. `divisor`: C / divisor channels refine the map; published are 8 (small) and 4 (large)."""
        super().__init__(in_channels, kernel_size=kernel_size, steepness=steepness)
        self.look = ConvBNReLU(in_channels // 4 + 1, in_channels // divisor, 3)  # LocalModule.last_3
        self.decide = nn.Conv2d(in_channels // divisor, 1, 1)  # LocalModule.last_1
        for part in (self.look, self.decide):
            initialise_as_paddle(part)

    def forward(self, x: Tensor) -> Maps | RefinedMaps:
        """Return RefinedMaps in training, the mean of coarse and refined shrink map in evaluation."""
        # Coarse map, then a refinement that sees the coarse map and the features before its last layer.
        features = self.shrink.features(x)  # [B, C / 4, H / 2, W / 2]
        coarse = to_probabilities(self.shrink.classify(features))
        local = torch.cat([coarse, F.interpolate(features, coarse.shape[-2:], mode='nearest')], dim=1)
        refined = to_probabilities(self.decide(self.look(local)))
        if not self.training:
            return Maps((coarse + refined) / 2)
        threshold, binary = self.threshold_and_binary(x, coarse)
        return RefinedMaps(refined, threshold, binary)


class MapHead(nn.Module):
    """Branch of one map: [B, C, h, w] -> features [B, C / 4, H / 2, W / 2] -> logits [B, 1, H, W]."""

    def __init__(self, in_channels: int, kernel_size: int) -> None:
        super().__init__()
        # conv1, conv2 (transposed) and conv3 (transposed) of PaddleOCR's Head.
        channels = in_channels // 4
        self.conv = ConvBNReLU(in_channels, channels, kernel_size)
        initialise_as_paddle(self)
        self.twice = make_deconv(channels, channels)  # h -> H / 2
        self.norm = BatchNorm2d(channels)
        self.classify = make_deconv(channels, 1)  # H / 2 -> H
        for norm in (self.conv.norm, self.norm):
            nn.init.constant_(norm.bias, NORM_BIAS)

    def features(self, x: Tensor) -> Tensor:
        """Return the features before the last layer."""
        return F.relu(self.norm(self.twice(self.conv(x))), inplace=True)


def make_deconv(in_channels: int, out_channels: int) -> nn.ConvTranspose2d:
    """Build a transposed convolution that doubles height and width, initialised as in PaddleOCR."""
    layer = nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity='relu')
    # Uniform within 1 / sqrt(fan-in).
    bound = 1 / math.sqrt(in_channels)
    assert layer.bias is not None
    nn.init.uniform_(layer.bias, -bound, bound)
    return layer


def to_probabilities(logits: Tensor) -> Tensor:
    """Apply the sigmoid in float32: half precision has too few numbers near 1."""
    return at_least_float32(logits).sigmoid()
