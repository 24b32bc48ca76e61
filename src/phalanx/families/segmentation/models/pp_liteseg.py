"""PP-LiteSeg: a light encoder-decoder for real-time segmentation.

Peng et al., PP-LiteSeg: A Superior Real-Time Semantic Segmentation Model, https://arxiv.org/abs/2204.02681. Layer order and
channels as in PaddleSeg. Shapes: B batch, C channels, K classes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.stdc import scale_width, stdc1, stdc2
from phalanx.nn.layers import ConvBN, ConvBNReLU, adaptive_avg_pool, initialise_convs, resize, upsample_logits

STRIDES = (8, 16, 32)  # of the fused maps
SMALL, LARGE = ((32, 64, 128), (32, 64, 64)), ((64, 96, 128), (64, 64, 64))  # channels of the fused maps and inside the heads


class PPLiteSeg(nn.Module):
    """images [B, 3, H, W] -> logits [B, K, H, W] of three heads, on the maps of stride 8 (main), 16 and 32."""

    num_outputs = 3

    def __init__(
        self,
        num_classes: int,
        backbone: Backbone,
        *,
        arm_channels: Sequence[int],
        head_channels: Sequence[int],
        context_channels: int,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.maps = select_maps(backbone, STRIDES, 'pp_liteseg')
        lows, highs = [backbone.channels[place] for place in self.maps], (*arm_channels[1:], context_channels)
        # the decoder: SPPM on the coarsest map, then one UAFM per map, then the heads
        self.context = SPPM(lows[-1], context_channels)
        self.fusions = nn.ModuleList(UAFM(low, high, out) for low, high, out in zip(lows, highs, arm_channels, strict=True))
        self.heads = nn.ModuleList(
            SegHead(fused, inner, num_classes) for fused, inner in zip(arm_channels, head_channels, strict=True)
        )
        for part in (self.context, self.fusions, self.heads):
            initialise_convs(part)

    def forward(self, images: Tensor) -> list[Tensor]:
        features = self.backbone(images)
        maps = [features[place] for place in self.maps]
        x = self.context(maps[-1])
        fused: list[Tensor] = []
        for low, fusion in zip(reversed(maps), reversed(self.fusions), strict=True):  # from the coarsest map to the finest
            x = fusion(low, x)
            fused.insert(0, x)
        # Auxiliary heads on the coarser maps are trained only.
        if not self.training:
            return [upsample_logits(self.heads[0](fused[0]), images)]
        return [upsample_logits(head(x), images) for head, x in zip(self.heads, fused, strict=True)]


class SPPM(nn.Module):
    """Simple pyramid pooling module: [B, in, h, w] -> [B, out, h, w], a sum of means on grids of 1, 2 and 4 cells a side."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.grids = (1, 2, 4)
        self.stages = nn.ModuleList(ConvBNReLU(in_channels, out_channels, 1, bias=True) for _ in self.grids)
        self.out = ConvBNReLU(out_channels, out_channels, 3, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        # Each grid is pooled, reduced to its channels, and upsampled back.
        pooled = [resize(stage(adaptive_avg_pool(x, grid)), x) for stage, grid in zip(self.stages, self.grids, strict=True)]
        context: Tensor = self.out(torch.stack(pooled).sum(0))
        return context


class UAFM(nn.Module):
    """Unified attention fusion module of the paper, with spatial attention.

    A fine map [B, low, h, w] and a coarse one [B, high, ., .] -> their weighted sum [B, out, h, w]. The weight of a pixel is
    computed from the mean and the maximum over the channels of both maps.
    """

    def __init__(self, low_channels: int, high_channels: int, out_channels: int) -> None:
        super().__init__()
        self.low = ConvBNReLU(low_channels, high_channels, 3)
        self.attention = nn.Sequential(ConvBNReLU(4, 2, 3), ConvBN(2, 1, 3))
        self.out = ConvBNReLU(high_channels, out_channels, 3)

    def forward(self, low: Tensor, high: Tensor) -> Tensor:
        low = self.low(low)
        high = resize(high, low)  # [B, high, h, w]
        # Mean and maximum over channels of both maps: four channels in all.
        pooled = [pool for x in (low, high) for pool in (x.mean(1, keepdim=True), x.max(1, keepdim=True).values)]
        alpha = torch.sigmoid(self.attention(torch.cat(pooled, dim=1)))  # [B, 1, h, w]
        fused: Tensor = self.out(low * alpha + high * (1 - alpha))
        return fused


class SegHead(nn.Module):
    """Segmentation head: a fused map [B, C, h, w] -> logits [B, K, h, w]."""

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
    backbone: Annotated[partial[Backbone], BACKBONES] = partial(stdc1),
    arm_channels: tuple[int, int, int] | None = None,
    head_channels: tuple[int, int, int] | None = None,
    width: float = 1.0,
) -> PPLiteSeg:
    """PP-LiteSeg, published on STDC1 (PP-LiteSeg-T) and STDC2 (PP-LiteSeg-B).

    `arm_channels`, `head_channels`: of the fused maps and inside the heads, from stride 8 to 32; default those published by
    PaddleSeg for the backbone. `width`: multiplies all other channels, those of an STDC included: at 0.25 a step takes a CPU a
    quarter of the time. Raises ValueError for a width that is not above 0 and at most 4, and for a backbone without maps of
    strides 8, 16 and 32.
    """
    if not 0 < width <= 4:
        raise ValueError(f'width is {width}; it must be above 0 and at most 4')
    published = LARGE if backbone.func is stdc2 else SMALL
    # Channels in multiples of 8.
    arms, heads = (tuple(scale_width(count, width) for count in counts) for counts in published)
    return PPLiteSeg(
        num_classes,
        backbone(STRIDES, width) if backbone.func in (stdc1, stdc2) else backbone(STRIDES),
        arm_channels=arm_channels or arms,
        head_channels=head_channels or heads,
        context_channels=scale_width(128, width),
    )
