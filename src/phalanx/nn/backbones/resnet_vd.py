"""ResNet-vd: ResNet with a deep stem of three 3x3 convolutions, and average pooling in its downsampling shortcuts.

He et al., Bag of Tricks for Image Classification with Convolutional Neural Networks, https://arxiv.org/abs/1812.01187 (its
ResNet-D). Layer order as in PaddleSeg and PaddleOCR. Shapes: B batch, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.backbones.backbone import Backbone, output_stride
from phalanx.nn.layers import ConvBN, ConvBNReLU, Stride, initialise_convs, run_stages

INNER_CHANNELS = (64, 128, 256, 512)  # of the blocks of each stage


class ResNetVD(nn.Module):
    """images [B, 3, H, W] -> maps of strides 4, 8, 16 and 32, with `channels`.

    Strides are limited to `output_stride`: further stages are dilated instead.
    """

    def __init__(self, blocks: tuple[int, int, int, int], *, block: type[Bottleneck | Residual], output_stride: int) -> None:
        """`blocks` per stage; `output_stride`: 8, 16 or 32.

        A dilated last stage has three blocks, with 1, 2 and 4 times the dilation of the stage (multi-grid).
        """
        super().__init__()
        self.stem = nn.Sequential(ConvBNReLU(3, 32, 3, stride=2), ConvBNReLU(32, 32, 3), ConvBNReLU(32, 64, 3))
        self.channels = tuple(block.expansion * inner for inner in INNER_CHANNELS)
        self.strides = tuple(min(stride, output_stride) for stride in (4, 8, 16, 32))
        dilations: list[tuple[int, ...]] = [(1,) * count for count in blocks]
        strides = [1, 2, 2, 2]
        # Dilated stages: stride 1, dilation in its place.
        if output_stride == 8:
            strides[2], dilations[2] = 1, (2,) * blocks[2]
        if output_stride < 32:
            # Multi-grid: 1, 2 and 4 times the dilation of the stage (2 at output stride 16, 4 at 8).
            wide = 16 // output_stride
            strides[3], dilations[3] = 1, (2 * wide, 4 * wide, 8 * wide)
        before = (64, *self.channels)
        self.stages = nn.ModuleList(
            stage(block, *each) for each in zip(before, INNER_CHANNELS, dilations, strides, strict=False)
        )
        initialise_convs(self)

    def forward(self, images: Tensor) -> list[Tensor]:  # [B, 3, H, W]
        return run_stages(self.stages, F.max_pool2d(self.stem(images), 3, stride=2, padding=1))


class Bottleneck(nn.Module):
    """Bottleneck block [B, in, ., .] -> [B, 4 * inner, h, w]."""

    expansion = 4

    def __init__(self, in_channels: int, inner_channels: int, dilation: int, stride: int = 1, *, first: bool = False) -> None:
        super().__init__()
        # 1x1 reduction, 3x3 convolution with the stride, 1x1 expansion.
        out_channels = self.expansion * inner_channels
        self.squeeze = ConvBNReLU(in_channels, inner_channels, 1)
        self.spatial = ConvBNReLU(inner_channels, inner_channels, 3, stride=stride, dilation=dilation)
        self.widen = ConvBN(inner_channels, out_channels, 1)
        # ResNet-D: average pooling, then a 1x1 convolution, instead of a 1x1 convolution of stride 2 that skips three quarters
        # of the map.
        self.pool = nn.AvgPool2d(2, stride=2, ceil_mode=True) if stride == 2 else nn.Identity()
        self.shortcut = ConvBN(in_channels, out_channels, 1) if first else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.widen(self.spatial(self.squeeze(x)))
        return F.relu(mixed + self.shortcut(self.pool(x)), inplace=True)


class Residual(nn.Module):
    """Basic block [B, in, ., .] -> [B, inner, h, w] of two 3x3 convolutions, for the shallow networks."""

    expansion = 1

    def __init__(self, in_channels: int, inner_channels: int, dilation: int, stride: int = 1, *, first: bool = False) -> None:
        super().__init__()
        self.spatial = ConvBNReLU(in_channels, inner_channels, 3, stride=stride, dilation=dilation)
        self.mix = ConvBN(inner_channels, inner_channels, 3)
        self.pool = nn.AvgPool2d(2, stride=2, ceil_mode=True) if stride == 2 else nn.Identity()
        self.shortcut = ConvBN(in_channels, inner_channels, 1) if first else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.mix(self.spatial(x)) + self.shortcut(self.pool(x)), inplace=True)


def stage(
    block: type[Bottleneck | Residual], in_channels: int, inner_channels: int, dilations: tuple[int, ...], stride: int
) -> nn.Sequential:
    """Return one block per entry of `dilations`; the first has the stride, and a convolution in its shortcut."""
    out_channels = block.expansion * inner_channels
    # Only the first block changes channels and size, so only its shortcut has a convolution.
    first = block(in_channels, inner_channels, dilations[0], stride, first=True)
    return nn.Sequential(first, *(block(out_channels, inner_channels, dilation) for dilation in dilations[1:]))


def resnet18_vd(strides: Sequence[Stride]) -> Backbone:
    """ResNet18-vd, with maps of strides 4, 8, 16 and 32."""
    return ResNetVD((2, 2, 2, 2), block=Residual, output_stride=32)


def resnet50_vd(strides: Sequence[Stride]) -> Backbone:
    """ResNet50-vd, dilated for networks that need no map of stride 32."""
    return ResNetVD((3, 4, 6, 3), block=Bottleneck, output_stride=output_stride(strides))


def resnet101_vd(strides: Sequence[Stride]) -> Backbone:
    """ResNet101-vd, dilated for networks that need no map of stride 32."""
    return ResNetVD((3, 4, 23, 3), block=Bottleneck, output_stride=output_stride(strides))
