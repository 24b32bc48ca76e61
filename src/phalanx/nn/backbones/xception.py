"""Xception-65 in the version of DeepLab: residual blocks of separable convolutions.

Chen et al., Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation, https://arxiv.org/abs/1802.02611.
Layer order and norms as in PaddleSeg with output stride 16. Shapes: B batch, C channels.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.layers import ConvBN, ConvBNReLU, Stride, initialise_convs, run_stages
from phalanx.parallel.norms import BatchNorm2d


class Xception(nn.Module):
    """images [B, 3, H, W] -> two maps, of strides 4 and 16, with `channels`."""

    channels = (128, 2048)
    strides = (4, 16)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvBNReLU(3, 32, 3, stride=2), ConvBNReLU(32, 64, 3))
        # entry flow, middle flow and exit flow of the paper
        self.entry = nn.ModuleList(Block(before, (after,) * 3, stride=2) for before, after in pairwise((64, 128, 256, 728)))
        self.middle = nn.Sequential(*(Block(728, (728,) * 3) for _ in range(16)))
        self.exit = nn.Sequential(
            Block(728, (728, 1024, 1024)),
            *(build_exit_conv(before, after) for before, after in pairwise((1024, 1536, 1536, 2048))),
        )
        # Batch norm settings of the original (TensorFlow).
        for module in self.modules():
            if isinstance(module, BatchNorm2d):
                module.eps, module.momentum = 1e-3, 0.01
        initialise_convs(self)

    def forward(self, images: Tensor) -> list[Tensor]:  # [B, 3, H, W]
        # The fine map is the output of the first entry block, before the ReLU of the next one.
        maps = run_stages(self.entry, self.stem(images))
        return [maps[0], self.exit(self.middle(maps[-1]))]


class Block(nn.Module):
    """Residual block [B, in, ., .] -> [B, out, h, w] of three separable convolutions, the last one with the stride."""

    def __init__(self, in_channels: int, out_channels: tuple[int, int, int], stride: int = 1) -> None:
        super().__init__()
        # Three separable convolutions; the last one has the stride.
        sizes = zip((in_channels, *out_channels[:2]), out_channels, (1, 1, stride), strict=True)
        self.convs = nn.Sequential(*(build_separable_conv(before, after, step) for before, after, step in sizes))
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels[-1]:
            self.shortcut = ConvBN(in_channels, out_channels[-1], 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.convs(x) + self.shortcut(x)
        return mixed


def build_separable_conv(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    """Return ReLU (not in place: the shortcut needs its input), a depthwise and a pointwise convolution."""
    depthwise = ConvBN(in_channels, in_channels, 3, stride=stride, groups=in_channels)
    return nn.Sequential(nn.ReLU(), depthwise, ConvBN(in_channels, out_channels, 1))


def build_exit_conv(in_channels: int, out_channels: int) -> nn.Sequential:
    """Return a separable convolution of the exit flow: dilation 2, with ReLU after both of its convolutions."""
    depthwise = ConvBNReLU(in_channels, in_channels, 3, dilation=2, groups=in_channels)
    return nn.Sequential(depthwise, ConvBNReLU(in_channels, out_channels, 1))


def xception65(strides: Sequence[Stride]) -> Backbone:
    """Xception-65 of DeepLabv3+; it has maps of strides 4 and 16 only."""
    return Xception()
