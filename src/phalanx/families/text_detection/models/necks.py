"""Necks for text detection: four maps, each half as large as the one before, become one of the size of the finest.

Lin et al., Feature Pyramid Networks, https://arxiv.org/abs/1612.03144. Each map is merged with the coarser ones, and gives a
quarter of the channels of the result. Layer order and initial weights as in PaddleOCR. Shapes: B batch, C channels.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.layers import DepthwiseConv2d, SqueezeExcitation, initialise_as_paddle

Layer = Callable[[int, int, int], nn.Module]  # input channels, output channels, kernel size


def conv(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without a bias, drawn by He's rule."""
    layer = nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity='relu')
    return layer


class FPN(nn.Module):
    """Maps [B, ., h, w], from fine to coarse -> [B, channels, h, w] of the size of the first.

    `layer` is `conv` for the neck of DB (Liao et al., https://arxiv.org/abs/1911.08947), and RSELayer for the RSE-FPN of
    PP-OCRv3 (https://arxiv.org/abs/2206.03001); with DepthwiseRSELayer behind it, the neck of PP-OCRv6 small.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        channels: int,
        layer: Layer = conv,
        *,
        out_layer: Layer | None = None,
        kernel_size: int = 3,
    ) -> None:
        """`out_layer`, with windows of `kernel_size`, makes the parts of the result; without it `layer` does."""
        super().__init__()
        self.inputs = nn.ModuleList(layer(before, channels, 1) for before in in_channels)
        self.outputs = nn.ModuleList((out_layer or layer)(channels, channels // 4, kernel_size) for _ in in_channels)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        known = top_down([layer(x) for layer, x in zip(self.inputs, maps, strict=True)])
        return joined([layer(x) for layer, x in zip(self.outputs, known, strict=True)])


class LKPAN(nn.Module):
    """Maps [B, ., h, w], from fine to coarse -> [B, channels, h, w] of the size of the first.

    A path aggregation network with large kernels, the neck of PP-OCRv3's teacher (https://arxiv.org/abs/2206.03001): after
    the top-down pass, a bottom-up one.
    """

    def __init__(self, in_channels: Sequence[int], channels: int) -> None:
        super().__init__()
        quarter = channels // 4
        self.inputs = nn.ModuleList(conv(before, channels, 1) for before in in_channels)
        self.top_down = nn.ModuleList(conv(channels, quarter, 9) for _ in in_channels)
        self.halve = nn.ModuleList(conv(quarter, quarter, 3, stride=2) for _ in in_channels[1:])
        self.outputs = nn.ModuleList(conv(quarter, quarter, 9) for _ in in_channels)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        known = top_down([layer(x) for layer, x in zip(self.inputs, maps, strict=True)])
        finest, *coarser = [layer(x) for layer, x in zip(self.top_down, known, strict=True)]
        merged = [finest]
        for halve, x in zip(self.halve, coarser, strict=True):
            merged.append(x + halve(merged[-1]))
        return joined([layer(x) for layer, x in zip(self.outputs, merged, strict=True)])


class RSELayer(nn.Module):
    """x [B, in, h, w] -> [B, out, h, w]: a convolution, and its result with weighed channels added to itself."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = conv(in_channels, out_channels, kernel_size)
        self.squeeze = SqueezeExcitation(out_channels, slope=0.2)
        initialise_as_paddle(self.squeeze)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        weighed: Tensor = self.squeeze(x)
        return x + weighed


class DepthwiseRSELayer(nn.Module):
    """x [B, in, h, w] -> [B, out, h, w]: each channel filtered by itself, and a RSELayer of single pixels."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.filter = DepthwiseConv2d(in_channels, in_channels, kernel_size, 1, kernel_size // 2, groups=in_channels)
        initialise_as_paddle(self.filter)
        self.conv = RSELayer(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(self.filter(x))
        return out


def top_down(maps: Sequence[Tensor]) -> list[Tensor]:
    """Maps [B, C, ., .], from fine to coarse, each with all coarser ones added to it."""
    *finer, coarsest = maps
    merged = [coarsest]
    for x in reversed(finer):
        merged.insert(0, x + F.interpolate(merged[0], x.shape[-2:], mode='nearest'))
    return merged


def joined(maps: Sequence[Tensor]) -> Tensor:
    """Maps [B, ., h, w], given from fine to coarse, as one of the size of the finest, whose channels come last."""
    finest, *coarser = maps
    enlarged = [F.interpolate(x, finest.shape[-2:], mode='nearest') for x in reversed(coarser)]
    return torch.cat([*enlarged, finest], dim=1)
