"""MobileNetV2: inverted residuals with linear bottlenecks.

Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, https://arxiv.org/abs/1801.04381. As in PaddleSeg, the
first block has an expansion convolution like all others, although its expansion is 1. Shapes: B batch, C channels.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from phalanx.nn.backbones.backbone import Backbone, output_stride
from phalanx.nn.backbones.mobilenet_v3 import Block, InvertedResidual, run_with_expansion
from phalanx.nn.layers import ConvBNReLU6, Stride, initialise_convs


class Group(NamedTuple):
    """Blocks with the same number of output channels; the first has the stride."""

    expansion: int
    channels: int
    blocks: int
    stride: int


STEM_CHANNELS = 32
GROUPS = (
    Group(1, 16, 1, 1),
    Group(6, 24, 2, 2),
    Group(6, 32, 3, 2),
    Group(6, 64, 4, 2),
    Group(6, 96, 3, 1),
    Group(6, 160, 3, 2),
    Group(6, 320, 1, 1),
)


class MobileNetV2(nn.Module):
    """images [B, 3, H, W] -> two maps, of strides 4 and `output_stride`, with `channels`.

    The first is the expanded map inside the last block of stride 4, with six times its output channels.
    """

    channels = (GROUPS[1].expansion * GROUPS[1].channels, GROUPS[-1].channels)

    def __init__(self, *, output_stride: int) -> None:
        """`output_stride`: 8, 16 or 32; strides beyond it are replaced by 1."""
        super().__init__()
        self.strides = (4, output_stride)
        self.stem = ConvBNReLU6(3, STEM_CHANNELS, 3, stride=2)
        self.groups = nn.ModuleList()
        before, stride = STEM_CHANNELS, 2
        # Drop strides beyond `output_stride`: later groups keep the size of the map.
        for group in GROUPS:
            step = group.stride if stride * group.stride <= output_stride else 1
            stride *= step
            blocks = nn.Sequential()
            for place in range(group.blocks):
                block = Block(3, group.expansion * before, group.channels, False, 'relu6', 1 if place else step)
                blocks.append(InvertedResidual(before, block, scale=1.0))
                before = group.channels
            self.groups.append(blocks)
        initialise_convs(self)

    def forward(self, images: Tensor) -> list[Tensor]:  # [B, 3, H, W]
        # Group 0 has stride 2; the last block of group 1 has the fine map, of stride 4.
        first, second, *rest = self.groups
        fine, x = run_with_expansion(second.children(), first(self.stem(images)))
        for group in rest:
            x = group(x)
        return [fine, x]


def mobilenet_v2(strides: Sequence[Stride]) -> Backbone:
    """MobileNetV2, its maps no coarser than the network needs."""
    return MobileNetV2(output_stride=output_stride(strides))
