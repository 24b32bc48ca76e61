"""STDC: a light backbone of short-term dense concatenation blocks.

Fan et al., Rethinking BiSeNet For Real-time Semantic Segmentation, https://arxiv.org/abs/2104.13188.
Layer order as in PaddleSeg. The classification head is left out: parameters without gradients would break data-parallel
training.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.layers import ConvBN, ConvBNReLU, Stride, initialise_convs, run_stages


class STDC(nn.Module):
    """images [B, 3, H, W] -> maps of strides 2, 4, 8, 16 and 32, with `channels`."""

    strides = (2, 4, 8, 16, 32)

    def __init__(self, blocks: tuple[int, int, int], width: float) -> None:
        """`blocks` of the last three stages; `width`: multiplies the published channels."""
        super().__init__()
        self.channels = tuple(scale_width(count, width) for count in (32, 64, 256, 512, 1024))
        first, second = self.channels[:2]
        # stages 1 and 2: one convolution each; 3 to 5: STDC blocks, the first of stride 2
        stages: list[nn.Module] = [ConvBNReLU(3, first, 3, stride=2), ConvBNReLU(first, second, 3, stride=2)]
        for count, before, after in zip(blocks, self.channels[1:], self.channels[2:], strict=False):
            halving = STDCBlock(before, after, stride=2)
            stages.append(nn.Sequential(halving, *(STDCBlock(after, after) for _ in range(count - 1))))
        self.stages = nn.ModuleList(stages)
        initialise_convs(self)

    def forward(self, images: Tensor) -> list[Tensor]:  # [B, 3, H, W]
        return run_stages(self.stages, images)


class STDCBlock(nn.Module):
    """Short-term dense concatenation (STDC) block: four convolutions in sequence, their outputs concatenated.

    They have 1/2, 1/4, 1/8 and 1/8 of the channels. With stride 2, a depthwise convolution halves the input of the second, and
    average pooling the output of the first.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        # Later convolutions see more context with fewer channels.
        half, quarter, eighth = out_channels // 2, out_channels // 4, out_channels // 8
        self.first = ConvBNReLU(in_channels, half, 1)
        self.halve: nn.Module = nn.Identity()
        self.pool: nn.Module = nn.Identity()
        if stride == 2:
            self.halve = ConvBN(half, half, 3, stride=2, groups=half)
            self.pool = nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False)  # as in Paddle: padding is not averaged
        self.rest = nn.ModuleList([ConvBNReLU(half, quarter, 3), ConvBNReLU(quarter, eighth, 3), ConvBNReLU(eighth, eighth, 3)])

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        first = self.first(x)
        # With stride 2 all four parts have half the size.
        return torch.cat([self.pool(first), *run_stages(self.rest, self.halve(first))], dim=1)


def scale_width(channels: int, width: float) -> int:
    """Return `channels` times `width`, rounded to a multiple of 8: the blocks split channels into eighths."""
    return max(8, round(channels * width / 8) * 8)


def stdc1(strides: Sequence[Stride], width: float = 1.0) -> Backbone:
    """STDC1 (STDC813 in the paper). PP-LiteSeg passes its own `width`."""
    return STDC((2, 2, 2), width)


def stdc2(strides: Sequence[Stride], width: float = 1.0) -> Backbone:
    """STDC2 (STDC1446 in the paper). PP-LiteSeg passes its own `width`."""
    return STDC((4, 5, 3), width)
