"""SegFormer: a transformer backbone (MiT) and an all-MLP head, one linear layer per map.

Xie et al., SegFormer: Simple and Efficient Design for Semantic Segmentation with Transformers, https://arxiv.org/abs/2105.15203.
Layer order, channels and initial weights as in PaddleSeg. Shapes: B batch, C channels, K classes.
"""

from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.mix_vit import mit_b0, mit_b1
from phalanx.nn.layers import ConvBNReLU, initialise_as_paddle, initialise_convs, resize, upsample_logits
from phalanx.nn.stochastic import ChannelDropout

STRIDES = (4, 8, 16, 32)  # of the maps, which are concatenated at the size of the first


class SegFormer(nn.Module):
    """images [B, 3, H, W] -> logits [B, K, H, W]."""

    num_outputs = 1

    def __init__(self, num_classes: int, backbone: Backbone, *, head_channels: int, dropout: float) -> None:
        """`dropout`: probability of dropping a channel before the classifier."""
        super().__init__()
        self.backbone = backbone
        self.maps = select_maps(backbone, STRIDES, 'segformer')
        self.linear = nn.ModuleList(nn.Linear(backbone.channels[place], head_channels) for place in self.maps)
        self.fuse = ConvBNReLU(4 * head_channels, head_channels, 1)
        self.dropout = ChannelDropout(dropout)
        self.classify = nn.Conv2d(head_channels, num_classes, 1)
        initialise_as_paddle(self.linear)
        for part in (self.fuse, self.classify):
            initialise_convs(part)

    def forward(self, images: Tensor) -> list[Tensor]:
        features = self.backbone(images)
        maps = [features[place] for place in self.maps]
        # All maps to the same channels, then to the size of the finest.
        projected = [apply_to_channels(linear, x) for linear, x in zip(self.linear, maps, strict=True)]  # [B, C, ., .] each
        x = self.fuse(torch.cat([resize(x, maps[0]) for x in reversed(projected)], dim=1))  # [B, C, H/4, W/4]
        return [upsample_logits(self.classify(self.dropout(x)), images)]


def apply_to_channels(linear: nn.Module, x: Tensor) -> Tensor:
    """Apply `linear` to the channels of a map [B, C, h, w]."""
    return linear(x.movedim(1, 3)).movedim(3, 1)  # type: ignore[no-any-return]


def segformer(
    num_classes: int,
    *,
    backbone: Annotated[partial[Backbone], BACKBONES] = partial(mit_b0),
    head_channels: int | None = None,
    dropout: float = 0.1,
) -> SegFormer:
    """SegFormer-B0 to -B5, published on MiT-B0 to -B5.

    `head_channels`: default 256 on MiT-B0 and -B1, 768 on other backbones, as published. `dropout`: probability of dropping a
    channel before the classifier. Raises ValueError for a backbone without maps of strides 4 to 32.
    """
    # Published: 256 for B0 and B1, 768 for B2 to B5.
    channels = head_channels or (256 if backbone.func in (mit_b0, mit_b1) else 768)
    return SegFormer(num_classes, backbone(STRIDES), head_channels=channels, dropout=dropout)
