"""OCRNet: object-contextual representations, attention of pixels to the object regions (classes) of their image.

Yuan et al., Object-Contextual Representations for Semantic Segmentation, https://arxiv.org/abs/1909.11065. Layer order,
channels and initial weights as in PaddleSeg. Shapes: B batch, C channels, K classes.
"""

from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.hrnet import hrnet_w18, initialise
from phalanx.nn.layers import ConvBNReLU, resize, upsample_logits
from phalanx.nn.stochastic import ChannelDropout

STRIDES = (4, 8, 16, 32)  # of the maps, which are concatenated at the size of the first
PIXEL_CHANNELS, KEY_CHANNELS = 512, 256


class OCRNet(nn.Module):
    """images [B, 3, H, W] -> logits [B, K, H, W], and the auxiliary logits of the soft object regions."""

    num_outputs = 2

    def __init__(self, num_classes: int, backbone: Backbone, *, dropout: float) -> None:
        """`dropout`: probability of dropping a channel before the classifier."""
        super().__init__()
        self.backbone = backbone
        self.maps = select_maps(backbone, STRIDES, 'ocrnet')
        # The maps of all branches, concatenated at the size of the finest.
        channels = sum(backbone.channels[place] for place in self.maps)
        self.guess = nn.Sequential(ConvBNReLU(channels, channels, 1, bias=True), nn.Conv2d(channels, num_classes, 1))
        self.pixels = ConvBNReLU(channels, PIXEL_CHANNELS, 3, bias=True)
        self.attention = ObjectAttention(PIXEL_CHANNELS, KEY_CHANNELS)
        self.mix = ConvBNReLU(2 * PIXEL_CHANNELS, PIXEL_CHANNELS, 1, bias=True)
        self.dropout = ChannelDropout(dropout)
        self.classify = nn.Conv2d(PIXEL_CHANNELS, num_classes, 1)
        for part in (self.guess, self.pixels, self.attention, self.mix, self.classify):
            initialise(part)

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = self.backbone(images)
        finest = maps[self.maps[0]]
        x = torch.cat([resize(maps[place], finest) for place in self.maps], dim=1)  # [B, C, H/4, W/4]
        guess = self.guess(x)  # soft object regions (auxiliary logits) [B, K, h, w]
        pixels = self.pixels(x)  # pixel representations [B, C, h, w]
        context = self.attention(pixels, gather_object_regions(pixels, guess))
        logits = self.classify(self.dropout(self.mix(torch.cat([context, pixels], dim=1))))
        # In evaluation the auxiliary logits are needed only inside.
        if not self.training:
            return [upsample_logits(logits, images)]
        return [upsample_logits(logits, images), upsample_logits(guess, images)]


def gather_object_regions(pixels: Tensor, guess: Tensor) -> Tensor:
    """Return the object region representations [B, C, K, 1]: means of `pixels` [B, C, h, w], weighted per class.

    The weights are a spatial softmax over the auxiliary logits `guess` [B, K, h, w] (soft object regions).
    """
    weights = guess.flatten(2).softmax(dim=2)  # [B, K, hw]
    return (pixels.flatten(2) @ weights.transpose(1, 2)).unsqueeze(3)


class ObjectAttention(nn.Module):
    """Object attention: pixels [B, C, h, w] attend to object regions [B, C, K, 1]; returns their context [B, C, h, w]."""

    def __init__(self, channels: int, key_channels: int) -> None:
        super().__init__()
        self.scale = key_channels**-0.5
        mix = partial(ConvBNReLU, kernel_size=1, bias=True)
        self.query = nn.Sequential(mix(channels, key_channels), mix(key_channels, key_channels))
        self.key = nn.Sequential(mix(channels, key_channels), mix(key_channels, key_channels))
        self.value = mix(channels, key_channels)
        self.out = mix(key_channels, channels)

    def forward(self, pixels: Tensor, regions: Tensor) -> Tensor:
        # Scaled dot-product attention with one key per class.
        queries = self.query(pixels).flatten(2)  # [B, C', hw]
        keys, values = self.key(regions).flatten(2), self.value(regions).flatten(2)  # [B, C', K]
        weights = (queries.transpose(1, 2) @ keys * self.scale).softmax(dim=2)  # [B, hw, K]
        context = values @ weights.transpose(1, 2)  # [B, C', hw]
        projected: Tensor = self.out(context.unflatten(2, pixels.shape[2:]))
        return projected


def ocrnet(
    num_classes: int, *, backbone: Annotated[partial[Backbone], BACKBONES] = partial(hrnet_w18), dropout: float = 0.1
) -> OCRNet:
    """OCRNet, published on HRNet.

    `dropout`: probability of dropping a channel before the classifier. Raises ValueError for a backbone without maps of strides
    4 to 32.
    """
    return OCRNet(num_classes, backbone(STRIDES), dropout=dropout)
