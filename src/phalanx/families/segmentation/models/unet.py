"""U-Net: an encoder, and a decoder with skip connections from the encoder map of each size.

Ronneberger et al., U-Net: Convolutional Networks for Biomedical Image Segmentation, https://arxiv.org/abs/1505.04597. Layer
order and channels as in PaddleSeg: batch norms, same-size convolutions, 512 channels at the coarsest level. Shapes: B batch,
C channels, K classes.
"""

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.layers import ConvBNReLU, initialise_convs, resize


class UNet(nn.Module):
    """images [B, 3, H, W] -> logits [B, K, H, W]."""

    num_outputs = 1

    def __init__(self, num_classes: int, *, upsampling: Literal['bilinear', 'transposed'], channels: int) -> None:
        super().__init__()
        # The coarsest level has no more channels than the one before it, as in PaddleSeg.
        levels = [channels * factor for factor in (1, 2, 4, 8, 8)]  # from full size to 1/16
        self.encoder = nn.ModuleList(double_conv(before, after) for before, after in zip((3, *levels), levels, strict=False))
        self.decoder = nn.ModuleList(Up(before, after, upsampling) for before, after in pairwise([*levels[3::-1], channels]))
        self.classify = nn.Conv2d(channels, num_classes, 3, padding=1)
        initialise_convs(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        # Encoder: the map of each size is kept as a skip connection.
        x = self.encoder[0](images)
        skips = []
        for block in self.encoder[1:]:
            skips.append(x)
            x = block(F.max_pool2d(x, 2))
        # Decoder: upsample, join with the skip connection of that size, convolve.
        for block, skip in zip(self.decoder, reversed(skips), strict=True):
            x = block(x, skip)
        return [self.classify(x)]


def double_conv(in_channels: int, out_channels: int) -> nn.Sequential:
    """Return two 3x3 convolutions that keep the size of the map."""
    channels = (in_channels, out_channels)
    return nn.Sequential(*(ConvBNReLU(before, out_channels, 3, bias=True) for before in channels))


class Up(nn.Module):
    """Decoder block: a map [B, in, ., .] and the skip [B, in, h, w] of the next finer level -> [B, out, h, w]."""

    def __init__(self, in_channels: int, out_channels: int, upsampling: Literal['bilinear', 'transposed']) -> None:
        super().__init__()
        self.enlarge: nn.Module = nn.Identity()  # bilinear: `resize` in `forward` does it
        enlarged = in_channels
        if upsampling == 'transposed':
            enlarged = out_channels // 2
            self.enlarge = nn.ConvTranspose2d(in_channels, enlarged, 2, stride=2)
        self.convs = double_conv(in_channels + enlarged, out_channels)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = resize(self.enlarge(x), skip)  # after a transposed convolution it changes odd sizes only
        combined: Tensor = self.convs(torch.cat([x, skip], dim=1))
        return combined


def unet(num_classes: int, *, upsampling: Literal['bilinear', 'transposed'] = 'bilinear', channels: int = 64) -> UNet:
    """U-Net with upsampling by interpolation or by learned transposed convolutions.

    `channels`: of the full-size maps; coarser ones have 2, 4, 8 and 8 times as many. 64 as published; 16 suit a CPU. Raises
    ValueError for less than 2.
    """
    if channels < 2:
        raise ValueError(f'channels is {channels}; it must be at least 2')
    return UNet(num_classes, upsampling=upsampling, channels=channels)
