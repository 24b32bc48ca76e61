"""ResNet-vd: ResNet with a stem of three small convolutions and shortcuts that average before they halve.

He et al., Bag of Tricks for Image Classification with Convolutional Neural Networks, https://arxiv.org/abs/1812.01187 (its
ResNet-D). Layer order as in PaddleSeg, with the last stages dilated for segmentation. Shapes: B batch, C channels.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.layers import ConvBN, ConvBNReLU, initialise_convs


class ResNetVD(nn.Module):
    """images [B, 3, H, W] -> four maps, of 1/4, 1/8, 1/8 and 1/8 of the size (rounded up), `channels` deep."""

    channels = (256, 512, 1024, 2048)

    def __init__(self, blocks: tuple[int, int, int]) -> None:
        """`blocks`: how many the first three stages have; the last has three, dilated by 4, 8 and 16."""
        super().__init__()
        self.stem = nn.Sequential(ConvBNReLU(3, 32, 3, stride=2), ConvBNReLU(32, 32, 3), ConvBNReLU(32, 64, 3))
        first, second, third = blocks
        self.stages = nn.ModuleList(
            [
                stage(64, 64, (1,) * first),
                stage(256, 128, (1,) * second, stride=2),
                stage(512, 256, (2,) * third),
                stage(1024, 512, (4, 8, 16)),
            ]
        )
        initialise_convs(self)

    def forward(self, images: Tensor) -> list[Tensor]:  # [B, 3, H, W]
        x = F.max_pool2d(self.stem(images), 3, stride=2, padding=1)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


def stage(in_channels: int, inner_channels: int, dilations: tuple[int, ...], stride: int = 1) -> nn.Sequential:
    """A block for each of `dilations`, the first one with the stride."""
    first = Bottleneck(in_channels, inner_channels, dilations[0], stride)
    return nn.Sequential(first, *(Bottleneck(4 * inner_channels, inner_channels, dilation) for dilation in dilations[1:]))


class Bottleneck(nn.Module):
    """A residual block [B, in, ., .] -> [B, 4 * inner, h, w] whose 3x3 convolution works on few channels."""

    def __init__(self, in_channels: int, inner_channels: int, dilation: int, stride: int = 1) -> None:
        super().__init__()
        out_channels = 4 * inner_channels
        self.squeeze = ConvBNReLU(in_channels, inner_channels, 1)
        self.spatial = ConvBNReLU(inner_channels, inner_channels, 3, stride=stride, dilation=dilation)
        self.widen = ConvBN(inner_channels, out_channels, 1)
        self.pool = nn.AvgPool2d(2, stride=2, ceil_mode=True) if stride == 2 else nn.Identity()
        self.shortcut = nn.Identity() if in_channels == out_channels else ConvBN(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.widen(self.spatial(self.squeeze(x)))
        return F.relu(mixed + self.shortcut(self.pool(x)), inplace=True)


def resnet50_vd() -> ResNetVD:
    return ResNetVD((3, 4, 6))


def resnet101_vd() -> ResNetVD:
    return ResNetVD((3, 4, 23))
