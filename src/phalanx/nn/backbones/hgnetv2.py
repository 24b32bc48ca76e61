"""HGNetV2, PaddlePaddle's convolutional backbone for GPUs and CPUs, used by D-FINE, DEIMv2 and RT-DETR.

Sizes, channels and layer order as in PaddleDetection (`hgnet_v2.py`). Shapes: B batch, C channels.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.layers import DepthwiseConv2d, Stride, initialise_convs, run_stages
from phalanx.parallel.norms import BatchNorm2d


class Stage(NamedTuple):
    """Channels of the layers within the blocks, of the map, and the numbers of blocks and of layers per block.

    `kernel`: of the depthwise convolutions in light blocks.
    """

    inner: int
    out: int
    blocks: int
    layers: int
    kernel: int = 5


class Size(NamedTuple):
    stem: tuple[int, int]  # channels within the stem, and of its map
    stages: tuple[Stage, ...]


def _size(stem: tuple[int, int], layers: int, *stages: tuple[int, int, int]) -> Size:
    return Size(stem, tuple(Stage(inner, out, blocks, layers) for inner, out, blocks in stages))


B0 = _size((16, 16), 3, (16, 64, 1), (32, 256, 1), (64, 512, 2), (128, 1024, 1))
SIZES = {
    # Of DEIMv2, without the last stage.
    'atto': Size(B0.stem, (*B0.stages[:2], Stage(64, 256, 1, 3, kernel=3))),
    'femto': Size(B0.stem, (*B0.stages[:2], Stage(64, 512, 1, 3))),
    'pico': Size(B0.stem, B0.stages[:3]),
    'b0': B0,
    'b1': _size((24, 32), 3, (32, 64, 1), (48, 256, 1), (96, 512, 2), (192, 1024, 1)),
    'b2': _size((24, 32), 4, (32, 96, 1), (64, 384, 1), (128, 768, 3), (256, 1536, 1)),
    'b3': _size((24, 32), 5, (32, 128, 1), (64, 512, 1), (128, 1024, 3), (256, 2048, 1)),
    'b4': _size((32, 48), 6, (48, 128, 1), (96, 512, 1), (192, 1024, 3), (384, 2048, 1)),
    'b5': _size((32, 64), 6, (64, 128, 1), (128, 512, 2), (256, 1024, 5), (512, 2048, 2)),
    'b6': _size((48, 96), 6, (96, 192, 2), (192, 512, 3), (384, 1024, 6), (768, 2048, 3)),
}


class HGNetV2(nn.Module):
    """images [B, 3, H, W] -> maps of strides 4, 8, 16 and, with four stages, 32, with `channels`."""

    def __init__(self, size: Size, *, affine: bool) -> None:
        """`affine`: learned scale and shift after each activation (LAB), as in the small sizes of the detectors."""
        super().__init__()
        self.channels = tuple(stage.out for stage in size.stages)
        self.strides = (4, 8, 16, 32)[: len(size.stages)]
        self.stem = Stem(*size.stem, affine=affine)
        before = (size.stem[1], *self.channels)
        # The coarse stages have light blocks; all but the first halve the map.
        self.stages = nn.ModuleList(
            hg_stage(channels, stage, halve=number > 0, light=number > 1, affine=affine)
            for number, (channels, stage) in enumerate(zip(before, size.stages, strict=False))
        )
        initialise_convs(self)

    def forward(self, images: Tensor) -> list[Tensor]:  # [B, 3, H, W]
        return run_stages(self.stages, self.stem(images))


class ConvBNAffine(nn.Module):
    """Convolution, batch norm, ReLU and, with `affine`, a learned scale and shift of all channels; "same" padding.

    A kernel of 2 x 2 has no padding.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        activate: bool = True,
        affine: bool = False,
    ) -> None:
        """`affine` has an effect only after an activation."""
        super().__init__()
        Conv = DepthwiseConv2d if groups == in_channels > 1 else nn.Conv2d
        self.conv = Conv(in_channels, out_channels, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
        self.norm = BatchNorm2d(out_channels)
        self.activate = activate
        self.affine = Affine() if activate and affine else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        mixed: Tensor = self.affine(F.relu(x, inplace=True)) if self.activate else x
        return mixed


class Affine(nn.Module):
    """Learned scale and shift of all values (LAB, learnable affine block): x [...] -> [...]."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias.to(x.dtype), self.scale.to(x.dtype), x)


class Stem(nn.Module):
    """images [B, 3, H, W] -> [B, out, H/4, W/4]: a convolution, then two of 2 x 2 beside max pooling, then two more."""

    def __init__(self, inner: int, out: int, *, affine: bool) -> None:
        super().__init__()
        self.stem1 = ConvBNAffine(3, inner, 3, stride=2, affine=affine)
        self.stem2a = ConvBNAffine(inner, inner // 2, 2, affine=affine)
        self.stem2b = ConvBNAffine(inner // 2, inner, 2, affine=affine)
        self.stem3 = ConvBNAffine(2 * inner, inner, 3, stride=2, affine=affine)
        self.stem4 = ConvBNAffine(inner, out, 1, affine=affine)

    def forward(self, images: Tensor) -> Tensor:
        # One more row and column of zeros on the right and at the bottom, so that windows of 2 x 2 keep the size.
        x = F.pad(self.stem1(images), (0, 1, 0, 1))
        mixed = self.stem2b(F.pad(self.stem2a(x), (0, 1, 0, 1)))
        out: Tensor = self.stem4(self.stem3(torch.cat([F.max_pool2d(x, 2, stride=1), mixed], 1)))
        return out


class Block(nn.Module):
    """HG block, [B, in, h, w] -> [B, out, h, w]: layers in a row, whose outputs are all concatenated and mixed."""

    def __init__(self, in_channels: int, stage: Stage, *, light: bool, residual: bool, affine: bool) -> None:
        super().__init__()
        inner, out, layers = stage.inner, stage.out, stage.layers
        before = [in_channels, *(inner,) * (layers - 1)]
        build = partial(light_layer, kernel=stage.kernel) if light else plain_layer
        self.layers = nn.ModuleList(build(channels, inner, affine) for channels in before)
        self.aggregation = nn.Sequential(
            ConvBNAffine(in_channels + layers * inner, out // 2, 1, affine=affine),
            ConvBNAffine(out // 2, out, 1, affine=affine),
        )
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.aggregation(torch.cat([x, *run_stages(self.layers, x)], 1))
        return mixed + x if self.residual else mixed


def plain_layer(in_channels: int, out_channels: int, affine: bool) -> nn.Module:
    """Return a 3 x 3 convolution."""
    return ConvBNAffine(in_channels, out_channels, 3, affine=affine)


def light_layer(in_channels: int, out_channels: int, affine: bool, kernel: int) -> nn.Module:
    """Return a 1 x 1 convolution and a depthwise one."""
    return nn.Sequential(
        ConvBNAffine(in_channels, out_channels, 1, activate=False),
        ConvBNAffine(out_channels, out_channels, kernel, groups=out_channels, affine=affine),
    )


def hg_stage(in_channels: int, stage: Stage, *, halve: bool, light: bool, affine: bool) -> nn.Sequential:
    """Return a depthwise convolution of stride 2 (if `halve`) and the blocks of a stage; all but the first are residual."""
    layers: list[nn.Module] = []
    if halve:
        layers.append(ConvBNAffine(in_channels, in_channels, 3, stride=2, groups=in_channels, activate=False))
    for number in range(stage.blocks):
        channels = stage.out if number else in_channels
        layers.append(Block(channels, stage, light=light, residual=number > 0, affine=affine))
    return nn.Sequential(*layers)


def hgnetv2(
    strides: Sequence[Stride],
    *,
    size: Literal['atto', 'femto', 'pico', 'b0', 'b1', 'b2', 'b3', 'b4', 'b5', 'b6'] = 'b0',
    affine: bool = True,
) -> Backbone:
    """HGNetV2 of one size; `affine`: learned scale and shift (LAB), in DEIMv2 and D-FINE N to M, not L and X."""
    return HGNetV2(SIZES[size], affine=affine)
