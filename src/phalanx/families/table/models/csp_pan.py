"""CSP-PAN: maps of several sizes, exchanging features from coarse to fine and back.

Yu et al., PP-PicoDet, https://arxiv.org/abs/2111.00902; layer order as in PaddleOCR. Shapes: B batch, C channels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.layers import ConvBNHardswish, DepthwiseSeparable


class CSPPAN(nn.Module):
    """Maps [B, ., h, w], from fine to coarse -> maps [B, C, h, w] of the same sizes."""

    def __init__(self, in_channels: Sequence[int], channels: int, *, kernel_size: int = 5) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(ConvBNHardswish(before, channels, 1) for before in in_channels)
        steps = range(len(in_channels) - 1)
        self.top_down = nn.ModuleList(CSPBlock(2 * channels, channels, kernel_size) for _ in steps)
        self.halve = nn.ModuleList(DepthwiseSeparable(channels, channels, kernel_size, stride=2) for _ in steps)
        self.bottom_up = nn.ModuleList(CSPBlock(2 * channels, channels, kernel_size) for _ in steps)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        *finer, coarsest = [conv(x) for conv, x in zip(self.inputs, maps, strict=True)]
        inner = [coarsest]
        for block, x in zip(self.top_down, reversed(finer), strict=True):
            enlarged = F.interpolate(inner[0], x.shape[-2:], mode='nearest')
            inner.insert(0, block(torch.cat([enlarged, x], dim=1)))
        out = inner[:1]
        for halve, block, x in zip(self.halve, self.bottom_up, inner[1:], strict=True):
            out.append(block(torch.cat([halve(out[-1]), x], dim=1)))
        return out


class CSPBlock(nn.Module):
    """A map [B, in, h, w] -> [B, out, h, w]: half of the channels go through the convolutions, half past them.

    Wang et al., CSPNet, https://arxiv.org/abs/1911.11929.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        half = out_channels // 2
        self.main = nn.Sequential(
            ConvBNHardswish(in_channels, half, 1), ConvBNHardswish(half, half, 1), DepthwiseSeparable(half, half, kernel_size)
        )
        self.short = ConvBNHardswish(in_channels, half, 1)
        self.out = ConvBNHardswish(out_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.out(torch.cat([self.main(x), self.short(x)], dim=1))
        return mixed
