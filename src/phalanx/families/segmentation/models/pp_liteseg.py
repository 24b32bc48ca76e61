"""PP-LiteSeg: a light encoder-decoder for real-time segmentation.

Peng et al., PP-LiteSeg: A Superior Real-Time Semantic Segmentation Model, https://arxiv.org/abs/2204.02681. Layer order and
channels as in PaddleSeg. Shapes: B batch, C channels, K classes.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from phalanx.nn.backbones.stdc import STDC, widened
from phalanx.nn.layers import ConvBN, ConvBNReLU, enlarged_logits, grid_means, initialise_convs, resize

BLOCKS = {'stdc1': (2, 2, 2), 'stdc2': (4, 5, 3)}  # STDC813 and STDC1446 of the paper
PUBLISHED_CHANNELS = {  # of the fused maps and inside the heads, from 1/8 to 1/32 of the size
    'stdc1': ((32, 64, 128), (32, 64, 64)),
    'stdc2': ((64, 96, 128), (64, 64, 64)),
}


class PPLiteSeg(nn.Module):
    """images [B, 3, H, W] -> logits [B, K, H, W] of three heads, from the map of 1/8 of the size (main) to that of 1/32."""

    num_outputs = 3

    def __init__(
        self,
        num_classes: int,
        backbone: STDC,
        *,
        arm_channels: Sequence[int],
        head_channels: Sequence[int],
        context_channels: int,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.context = PyramidPooling(backbone.channels[-1], context_channels)
        lows, highs = backbone.channels[-3:], (*arm_channels[1:], context_channels)
        self.fusions = nn.ModuleList(Fusion(low, high, out) for low, high, out in zip(lows, highs, arm_channels, strict=True))
        self.heads = nn.ModuleList(
            Head(fused, inner, num_classes) for fused, inner in zip(arm_channels, head_channels, strict=True)
        )
        initialise_convs(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = self.backbone(images)[-3:]
        x = self.context(maps[-1])
        fused: list[Tensor] = []
        for low, fusion in zip(reversed(maps), reversed(self.fusions), strict=True):  # from the coarsest map to the finest
            x = fusion(low, x)
            fused.insert(0, x)
        if not self.training:
            return [enlarged_logits(self.heads[0](fused[0]), images)]
        return [enlarged_logits(head(x), images) for head, x in zip(self.heads, fused, strict=True)]


class PyramidPooling(nn.Module):
    """The coarsest map [B, in, h, w] -> its context [B, out, h, w]: what it is on grids of 1, 4 and 16 cells, added up."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.grids = (1, 2, 4)
        self.stages = nn.ModuleList(ConvBNReLU(in_channels, out_channels, 1, bias=True) for _ in self.grids)
        self.out = ConvBNReLU(out_channels, out_channels, 3, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        pooled = [resize(stage(grid_means(x, grid)), x) for stage, grid in zip(self.stages, self.grids, strict=True)]
        context: Tensor = self.out(torch.stack(pooled).sum(0))
        return context


class Fusion(nn.Module):
    """The unified attention fusion of the paper, in its spatial form.

    A fine map [B, low, h, w] and a coarse one [B, high, ., .] -> their mixture [B, out, h, w]. How much of each a pixel takes
    is decided from the mean and the maximum of their channels there.
    """

    def __init__(self, low_channels: int, high_channels: int, out_channels: int) -> None:
        super().__init__()
        self.low = ConvBNReLU(low_channels, high_channels, 3)
        self.attention = nn.Sequential(ConvBNReLU(4, 2, 3), ConvBN(2, 1, 3))
        self.out = ConvBNReLU(high_channels, out_channels, 3)

    def forward(self, low: Tensor, high: Tensor) -> Tensor:
        low = self.low(low)
        high = resize(high, low)  # [B, high, h, w]
        about = [of for x in (low, high) for of in (x.mean(1, keepdim=True), x.max(1, keepdim=True).values)]
        share = torch.sigmoid(self.attention(torch.cat(about, dim=1)))  # [B, 1, h, w]
        mixture: Tensor = self.out(low * share + high * (1 - share))
        return mixture


class Head(nn.Module):
    """A fused map [B, C, h, w] -> logits [B, K, h, w]."""

    def __init__(self, in_channels: int, inner_channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv = ConvBNReLU(in_channels, inner_channels, 3)
        self.classify = nn.Conv2d(inner_channels, num_classes, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classify(self.conv(x))
        return logits


def pp_liteseg(
    num_classes: int,
    *,
    backbone: Literal['stdc1', 'stdc2'] = 'stdc1',
    arm_channels: tuple[int, int, int] | None = None,
    head_channels: tuple[int, int, int] | None = None,
    width: float = 1.0,
) -> PPLiteSeg:
    """PP-LiteSeg on STDC1 (PP-LiteSeg-T) or STDC2 (PP-LiteSeg-B).

    `arm_channels` and `head_channels`: of the fused maps and inside the heads, from 1/8 to 1/32 of the size; without them those
    that PaddleSeg published for the backbone. `width`: all other channels as a share of the published ones: a step at
    a quarter takes a CPU a quarter of the time.
    """
    if not 0 < width <= 4:
        raise ValueError(f'width is {width}, and has to be above 0 and at most 4')
    arms, heads = (tuple(widened(count, width) for count in published) for published in PUBLISHED_CHANNELS[backbone])
    return PPLiteSeg(
        num_classes,
        STDC(BLOCKS[backbone], width),
        arm_channels=arm_channels or arms,
        head_channels=head_channels or heads,
        context_channels=widened(128, width),
    )
