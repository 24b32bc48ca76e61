"""HRNet: a backbone of parallel branches of strides 4 to 32 that exchange features (multi-resolution fusion).

Wang et al., Deep High-Resolution Representation Learning for Visual Recognition, https://arxiv.org/abs/1908.07919. Layer order,
padding and initial weights as in PaddleSeg. Shapes: B batch, C channels.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.layers import ConvBN, ConvBNReLU, Stride, resize


class HRNet(nn.Module):
    """images [B, 3, H, W] -> the maps of all branches, of strides 4, 8, 16 and 32, with `channels`."""

    strides = (4, 8, 16, 32)

    def __init__(self, width: int) -> None:
        """`width`: channels of the finest branch; each coarser one has twice as many."""
        super().__init__()
        branches = [width, 2 * width, 4 * width, 8 * width]
        self.channels = tuple(branches)
        self.stem = nn.Sequential(DownsampleConvBNReLU(3, 64), DownsampleConvBNReLU(64, 64))
        # layer1 of the original; then the transitions and stages 2 to 4 (2, 3 and 4 branches; 1, 4 and 3 modules)
        self.first = nn.Sequential(*(bottleneck(channels) for channels in (64, 256, 256, 256)))
        self.finest = ConvBNReLU(256, width, 3)
        self.joining = nn.ModuleList(DownsampleConvBNReLU(before, after) for before, after in pairwise((256, *branches[1:])))
        self.stages = nn.ModuleList(
            nn.Sequential(*(HighResolutionModule(branches[:count]) for _ in range(modules)))
            for count, modules in ((2, 1), (3, 4), (4, 3))
        )
        initialise(self)

    def forward(self, images: Tensor) -> list[Tensor]:  # [B, 3, H, W]
        x = self.first(self.stem(images))  # [B, 256, H/4, W/4]
        # Transition and stage: each transition adds a branch of half the size and twice the channels.
        maps = [self.finest(x)]
        for join, stage in zip(self.joining, self.stages, strict=True):
            maps.append(join(x))  # a new branch, at half the size of the coarsest so far
            maps = stage(maps)
            x = maps[-1]
        return maps


def hrnet_w18(strides: Sequence[Stride]) -> Backbone:
    """HRNet-W18: 18, 36, 72 and 144 channels."""
    return HRNet(18)


def hrnet_w48(strides: Sequence[Stride]) -> Backbone:
    """HRNet-W48: 48, 96, 192 and 384 channels."""
    return HRNet(48)


class DownsampleConvBN(ConvBN):
    """3x3 ConvBN of stride 2; it halves the map, rounding up.

    Padding as in Paddle's 'same': even sizes are padded at the end only, so that windows start at 0, 2, ... not at -1, 1, ...
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, stride=2)
        self.conv.padding = (0, 0)  # `forward` pads

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        H, W = x.shape[-2:]
        return super().forward(F.pad(x, (W % 2, 1, H % 2, 1)))


class DownsampleConvBNReLU(DownsampleConvBN, ConvBNReLU):
    """DownsampleConvBN with ReLU."""


class Residual(nn.Module):
    """Residual block [B, in, h, w] -> [B, out, h, w]; the shortcut is a 1x1 convolution where the channels differ."""

    def __init__(self, in_channels: int, *convs: ConvBN) -> None:
        super().__init__()
        out_channels = convs[-1].conv.out_channels
        self.convs = nn.Sequential(*convs)
        self.shortcut = nn.Identity() if in_channels == out_channels else ConvBN(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.convs(x) + self.shortcut(x), inplace=True)


def bottleneck(in_channels: int) -> Residual:
    """Return a bottleneck block [B, in, h, w] -> [B, 256, h, w]."""
    return Residual(in_channels, ConvBNReLU(in_channels, 64, 1), ConvBNReLU(64, 64, 3), ConvBN(64, 256, 1))


def basic_block(channels: int) -> Residual:
    """Return a basic block [B, C, h, w] -> [B, C, h, w] of two 3x3 convolutions."""
    return Residual(channels, ConvBNReLU(channels, channels, 3), ConvBN(channels, channels, 3))


class HighResolutionModule(nn.Module):
    """High-resolution module: parallel branches of four basic blocks each, then multi-resolution fusion."""

    def __init__(self, channels: Sequence[int]) -> None:
        """`channels` of the maps, the finest first."""
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*(basic_block(C) for _ in range(4))) for C in channels)
        self.sums = nn.ModuleList(FuseLayer(channels, end) for end in range(len(channels)))

    def forward(self, maps: list[Tensor]) -> list[Tensor]:  # [B, C, h, w], [B, 2C, h/2, w/2], ... -> the same
        maps = [branch(x) for branch, x in zip(self.branches, maps, strict=True)]
        return [add(maps) for add in self.sums]


class FuseLayer(nn.Module):
    """Fuse layer: maps of all branches -> their sum, at the size and channels of branch `end`, with ReLU."""

    def __init__(self, channels: Sequence[int], end: int) -> None:
        super().__init__()
        self.end = end
        self.paths = nn.ModuleList(build_path(channels, start, end) for start in range(len(channels)))

    def forward(self, maps: list[Tensor]) -> Tensor:
        own = maps[self.end]
        # Coarser maps are upsampled; `resize` leaves maps of the right size alone.
        aligned = [resize(build_path(x), own) for build_path, x in zip(self.paths, maps, strict=True)]
        return F.relu(torch.stack(aligned).sum(0), inplace=True)


def build_path(channels: Sequence[int], start: int, end: int) -> nn.Module:
    """Return the path from branch `start` to `end`: stride-2 convolutions downwards, a 1x1 one (then a resize) upwards."""
    if end < start:
        return ConvBN(channels[start], channels[end], 1)
    if end == start:
        return nn.Identity()
    # One convolution of stride 2 per level; only the last changes the channels, without ReLU before the sum.
    downsampling = [DownsampleConvBNReLU(channels[start], channels[start]) for _ in range(end - start - 1)]
    return nn.Sequential(*downsampling, DownsampleConvBN(channels[start], channels[end]))


def initialise(model: nn.Module) -> None:
    """Initialise every convolution of `model` as HRNet does: normal with standard deviation 0.001, biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.001)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
