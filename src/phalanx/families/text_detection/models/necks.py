"""Text detection necks: fuse four feature maps of falling resolution into one at the finest resolution.

Lin et al., Feature Pyramid Networks, https://arxiv.org/abs/1612.03144. Each level is merged with the coarser ones and gives a
quarter of the channels of the result. Layer order and initial weights as in PaddleOCR. Shapes: B batch, C channels.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.layers import DepthwiseConv2d, SqueezeExcitation, initialise_as_paddle

Layer = Callable[[int, int, int], nn.Module]  # input channels, output channels, kernel size


def make_conv(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    """Build a convolution without bias, with He initialisation."""
    layer = nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity='relu')
    return layer


class FPN(nn.Module):
    """Feature pyramid network: maps [B, ., h, w], from fine to coarse -> [B, channels, h, w] of the size of the first.

    `layer`: `make_conv` for the neck of DB (Liao et al., https://arxiv.org/abs/1911.08947), RSELayer for the RSE-FPN of
    PP-OCRv3 (https://arxiv.org/abs/2206.03001). RSELayer with DepthwiseRSELayer as `out_layer` is the neck of PP-OCRv6 small.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        channels: int,
        layer: Layer = make_conv,
        *,
        out_layer: Layer | None = None,
        kernel_size: int = 3,
    ) -> None:
        """Build the neck. `out_layer`, with kernels of `kernel_size`, makes the output levels; default: `layer`."""
        super().__init__()
        self.inputs = nn.ModuleList(layer(before, channels, 1) for before in in_channels)  # lateral convolutions, ins_conv
        self.outputs = nn.ModuleList((out_layer or layer)(channels, channels // 4, kernel_size) for _ in in_channels)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Fuse the maps top-down, and concatenate the levels."""
        levels = add_top_down([layer(x) for layer, x in zip(self.inputs, maps, strict=True)])
        return concat_maps([layer(x) for layer, x in zip(self.outputs, levels, strict=True)])


class LKPAN(nn.Module):
    """LK-PAN: maps [B, ., h, w], from fine to coarse -> [B, channels, h, w] of the size of the first.

    A path aggregation network (PAN) with large kernels, the neck of PP-OCRv3's teacher (https://arxiv.org/abs/2206.03001): a
    top-down pass, then a bottom-up one.
    """

    def __init__(self, in_channels: Sequence[int], channels: int) -> None:
        super().__init__()
        quarter = channels // 4
        self.inputs = nn.ModuleList(make_conv(before, channels, 1) for before in in_channels)  # ins_conv
        self.top_down = nn.ModuleList(make_conv(channels, quarter, 9) for _ in in_channels)  # inp_conv
        self.halve = nn.ModuleList(make_conv(quarter, quarter, 3, stride=2) for _ in in_channels[1:])  # pan_head_conv
        self.outputs = nn.ModuleList(make_conv(quarter, quarter, 9) for _ in in_channels)  # pan_lat_conv

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Fuse the maps top-down, then bottom-up, and concatenate the levels."""
        levels = add_top_down([layer(x) for layer, x in zip(self.inputs, maps, strict=True)])
        # Top-down sums are reduced to a quarter of the channels by large kernels.
        finest, *coarser = [layer(x) for layer, x in zip(self.top_down, levels, strict=True)]
        # Bottom-up: each level adds the downsampled sum of the finer ones.
        merged = [finest]
        for halve, x in zip(self.halve, coarser, strict=True):
            merged.append(x + halve(merged[-1]))
        return concat_maps([layer(x) for layer, x in zip(self.outputs, merged, strict=True)])


class RSELayer(nn.Module):
    """Residual squeeze-and-excitation layer of RSE-FPN: x [B, in, h, w] -> y + SE(y) [B, out, h, w], y = conv(x)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = make_conv(in_channels, out_channels, kernel_size)
        self.squeeze = SqueezeExcitation(out_channels, slope=0.2)
        initialise_as_paddle(self.squeeze)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, and add the reweighted channels."""
        x = self.conv(x)
        reweighted: Tensor = self.squeeze(x)
        return x + reweighted


class DepthwiseRSELayer(nn.Module):
    """Depthwise convolution with a large kernel, then an RSELayer of 1 x 1: x [B, in, h, w] -> [B, out, h, w]."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.filter = DepthwiseConv2d(in_channels, in_channels, kernel_size, 1, kernel_size // 2, groups=in_channels)
        initialise_as_paddle(self.filter)
        self.conv = RSELayer(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both layers."""
        out: Tensor = self.conv(self.filter(x))
        return out


def add_top_down(maps: Sequence[Tensor]) -> list[Tensor]:
    """Add to each map [B, C, ., .], given from fine to coarse, all coarser ones (nearest upsampling)."""
    # From the coarsest level on: each sum contains all coarser maps.
    *finer, coarsest = maps
    merged = [coarsest]
    for x in reversed(finer):
        merged.insert(0, x + F.interpolate(merged[0], x.shape[-2:], mode='nearest'))
    return merged


def concat_maps(maps: Sequence[Tensor]) -> Tensor:
    """Upsample maps [B, ., h, w], given from fine to coarse, to the finest and concatenate them, the finest last."""
    # PaddleOCR's order of concatenation, from coarse to fine.
    finest, *coarser = maps
    enlarged = [F.interpolate(x, finest.shape[-2:], mode='nearest') for x in reversed(coarser)]
    return torch.cat([*enlarged, finest], dim=1)
