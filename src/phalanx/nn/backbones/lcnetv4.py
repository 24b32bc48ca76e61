"""PP-LCNetV4: the backbone of PP-OCRv6, of detectors and recognisers.

Blocks separate token mixer (depthwise) and channel mixer (pointwise), as in Wang et al., RepViT,
https://arxiv.org/abs/2307.09283; the stem is that of PP-HGNetV2, but for the tiny recogniser. Layer order and channels as in
PaddlePaddle's published files and the PyTorch port in the transformers library. Shapes: B batch, C channels.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.layers import ConvBN, ConvBNReLU, DepthwiseConv2d, SqueezeExcitation, Stride, initialise_convs, run_stages


class Stage(NamedTuple):
    """Blocks of one size."""

    channels: int
    squeeze: tuple[bool, ...]  # one entry per block of stride 1: True adds squeeze-and-excitation
    stride: Stride | None = None  # of a downsampling block before them; None: without


PAIR = True, False
Size = Literal['tiny', 'small', 'medium']
# Channels of the stem, and the stages of a size.
DETECTION: dict[Size, tuple[int, tuple[Stage, ...]]] = {
    'tiny': (16, (Stage(32, PAIR), Stage(48, PAIR, 2), Stage(64, PAIR * 2, 2), Stage(160, PAIR, 2))),
    'small': (24, (Stage(48, PAIR), Stage(96, PAIR, 2), Stage(192, PAIR * 2, 2), Stage(384, PAIR, 2))),
    'medium': (64, (Stage(128, PAIR), Stage(256, PAIR, 2), Stage(512, PAIR * 2, 2), Stage(896, PAIR, 2))),
}
RECOGNITION: dict[Size, tuple[int, tuple[Stage, ...]]] = {
    'tiny': (24, (Stage(48, PAIR), Stage(96, PAIR, (2, 1)), Stage(160, (*PAIR, False), (2, 1)))),
    'small': (48, (Stage(96, (*PAIR, False)), Stage(192, PAIR * 3, (2, 1)), Stage(384, PAIR, (2, 1)))),
    'medium': (64, (Stage(128, (True,)), Stage(256, (False, True), 1), Stage(512, PAIR * 3, (2, 1)), Stage(768, PAIR, (2, 1)))),
}


class PPLCNetV4(nn.Module):
    """images [B, 3, H, W] -> the maps of all stages, from fine to coarse, with `channels`.

    Strides are 4, 8, 16 and 32 with DETECTION; the last map of RECOGNITION has stride 16 in height and 4 in width.
    """

    def __init__(self, stages: tuple[Stage, ...], stem: nn.Module) -> None:
        super().__init__()
        before = stages[0].channels
        self.stem = stem
        # One stage per map: an optional downsampling block, then blocks at one size.
        self.stages = nn.ModuleList()
        for stage in stages:
            blocks = nn.Sequential()
            if stage.stride is not None:
                blocks.append(LCNetV4Block(before, stage.channels, stride=stage.stride))
                before = stage.channels
            blocks.extend(LCNetV4Block(before, before, squeeze=squeeze) for squeeze in stage.squeeze)
            self.stages.append(blocks)
        self.channels, self.strides = tuple(stage.channels for stage in stages), accumulate_strides(stages)
        initialise_convs(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        return run_stages(self.stages, self.stem(images))


def accumulate_strides(stages: tuple[Stage, ...]) -> tuple[Stride, ...]:
    """Return the strides of the maps of `stages`, which follow a stem of stride 4."""
    # (down, right) accumulated: recognisers halve the height only.
    strides, height, width = list[Stride](), 4, 4
    for stage in stages:
        step = stage.stride or 1
        down, right = (step, step) if isinstance(step, int) else step
        height, width = height * down, width * right
        strides.append(height if height == width else (height, width))
    return tuple(strides)


def pp_lcnet_v4(strides: Sequence[Stride], *, size: Size = 'small') -> Backbone:
    """PP-LCNetV4 of a `size` of PP-OCRv6: of its detector, or of its recogniser for networks that read text lines."""
    is_recogniser = isinstance(strides[-1], tuple)
    channels, stages = (RECOGNITION if is_recogniser else DETECTION)[size]
    stem = PlainStem if is_recogniser and size == 'tiny' else Stem
    return PPLCNetV4(stages, stem(channels, stages[0].channels))


class Stem(nn.Module):
    """Stem of PP-HGNetV2, images [B, 3, H, W] -> [B, out, H/4, W/4]: 2x2 convolutions in parallel with 2x2 max pooling."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        # stem1, stem2a, stem2b, stem3 and stem4 of PP-HGNetV2.
        self.halve = ConvBNReLU(3, channels, 3, stride=2)
        self.narrow = CornerConv(channels, channels // 2)
        self.widen = CornerConv(channels // 2, channels)
        self.join = ConvBNReLU(2 * channels, channels, 3, stride=2)
        self.out = ConvBNReLU(channels, out_channels, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.halve(images)
        # Zero padding at the end keeps the size: windows of 2 x 2 start at each pixel.
        pooled = F.max_pool2d(F.pad(x, (0, 1, 0, 1)), 2, 1)
        out: Tensor = self.out(self.join(torch.cat([pooled, self.widen(self.narrow(x))], dim=1)))
        return out


class PlainStem(nn.Sequential):
    """Stem of the tiny recogniser, images [B, 3, H, W] -> [B, out, H/4, W/4]: two convolutions with GELU in between."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__(ConvBN(3, channels, 3, stride=2), nn.GELU(), ConvBN(channels, out_channels, 3, stride=2))


class CornerConv(ConvBNReLU):
    """2x2 ConvBNReLU [B, in, H, W] -> [B, out, H, W], zero-padded at the bottom and on the right."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 2)
        self.conv.padding = (0, 0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 1, 0, 1)))


class LCNetV4Block(nn.Module):
    """RepViT-style block x [B, in, H, W] -> [B, out, h, w]: depthwise convolution, optional SE, pointwise MLP (fc1, fc2).

    Without stride, the depthwise convolution has no norm and the MLP has a shortcut.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: Stride = 1, squeeze: bool = False) -> None:
        super().__init__()
        # Token mixer (depthwise), SE, then channel mixer (fc1, GELU, fc2).
        self.keeps_size = in_channels == out_channels and stride == 1
        if self.keeps_size:
            self.filter: nn.Module = DepthwiseConv2d(in_channels, in_channels, 3, 1, 1, groups=in_channels)
        else:
            self.filter = ConvBN(in_channels, in_channels, 3, stride=stride, groups=in_channels)
        self.squeeze = SqueezeExcitation(in_channels) if squeeze else nn.Identity()
        self.widen = ConvBN(in_channels, 2 * in_channels, 1)
        self.mix = ConvBN(2 * in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(self.filter(x))
        mixed: Tensor = self.mix(F.gelu(self.widen(x)))
        return x + mixed if self.keeps_size else mixed
