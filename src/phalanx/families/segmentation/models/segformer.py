"""SegFormer: a transformer backbone and a head that has no more than a linear layer for each of its maps.

Xie et al., SegFormer: Simple and Efficient Design for Semantic Segmentation with Transformers, https://arxiv.org/abs/2105.15203.
Layer order, channels and initial weights as in PaddleSeg. Shapes: B batch, C channels, K classes.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from phalanx.nn.backbones.mix_vit import MixViT
from phalanx.nn.layers import ConvBNReLU, enlarged_logits, initialise_as_paddle, initialise_convs, resize
from phalanx.nn.stochastic import ChannelDropout

BACKBONES = {  # channels and blocks of the four stages, and channels of the head, as published
    'mit_b0': ((32, 64, 160, 256), (2, 2, 2, 2), 256),
    'mit_b1': ((64, 128, 320, 512), (2, 2, 2, 2), 256),
    'mit_b2': ((64, 128, 320, 512), (3, 4, 6, 3), 768),
    'mit_b3': ((64, 128, 320, 512), (3, 4, 18, 3), 768),
    'mit_b4': ((64, 128, 320, 512), (3, 8, 27, 3), 768),
    'mit_b5': ((64, 128, 320, 512), (3, 6, 40, 3), 768),
}


class SegFormer(nn.Module):
    """images [B, 3, H, W] -> logits [B, K, H, W]."""

    num_outputs = 1

    def __init__(self, num_classes: int, backbone: MixViT, *, head_channels: int, dropout: float) -> None:
        """`dropout`: the share of the channels that classify which training leaves out."""
        super().__init__()
        self.backbone = backbone
        self.linear = nn.ModuleList(nn.Linear(C, head_channels) for C in backbone.channels)
        self.fuse = ConvBNReLU(4 * head_channels, head_channels, 1)
        self.dropout = ChannelDropout(dropout)
        self.classify = nn.Conv2d(head_channels, num_classes, 1)
        initialise_as_paddle(self.linear)
        for part in (self.fuse, self.classify):
            initialise_convs(part)

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = self.backbone(images)
        projected = [channelwise(linear, x) for linear, x in zip(self.linear, maps, strict=True)]  # [B, C, ., .] each
        x = self.fuse(torch.cat([resize(x, maps[0]) for x in reversed(projected)], dim=1))  # [B, C, H/4, W/4]
        return [enlarged_logits(self.classify(self.dropout(x)), images)]


def channelwise(linear: nn.Module, x: Tensor) -> Tensor:
    """`linear` applied to the channels of a map [B, C, h, w]."""
    return linear(x.movedim(1, 3)).movedim(3, 1)  # type: ignore[no-any-return]


def segformer(
    num_classes: int,
    *,
    backbone: Literal['mit_b0', 'mit_b1', 'mit_b2', 'mit_b3', 'mit_b4', 'mit_b5'] = 'mit_b0',
    head_channels: int | None = None,
    dropout: float = 0.1,
    drop_path: float = 0.1,
) -> SegFormer:
    """SegFormer-B0 to -B5.

    `head_channels`: without them 256 on the two smaller backbones and 768 on the others, as published. `dropout`: the share of
    the channels that classify which training leaves out. `drop_path`: how often training skips the last block of the backbone,
    the ones before it less and less.
    """
    channels, blocks, published_head_channels = BACKBONES[backbone]
    mit = MixViT(channels, blocks, drop_path=drop_path)
    return SegFormer(num_classes, mit, head_channels=head_channels or published_head_channels, dropout=dropout)
