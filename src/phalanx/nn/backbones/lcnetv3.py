"""PP-LCNetV3: PP-LCNet whose convolutions are sums of several in training and a single one afterwards.

The backbone of PP-OCRv4 and PP-OCRv5 mobile, of detectors and recognisers; layer order as in PaddleOCR. The sums are those of
Vasu et al., MobileOne, https://arxiv.org/abs/2206.04040. Shapes: B batch, C channels.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.backbones.pp_lcnet import Block, PPLCNet, Stages
from phalanx.nn.layers import ConvBN, DepthwiseConv2d, Stride, initialise_as_paddle
from phalanx.parallel.norms import BatchNorm2d

BRANCHES = 4  # convolutions of the full kernel in each sum, as published
NARROWED = (16, 24, 56, 480)  # channels of the maps of NarrowedLCNetV3, at scale 1
DETECTION: Stages = (  # the first at 1/2 of the size, then each at half of the one before
    (Block(3, 32),),
    (Block(3, 64, 2), Block(3, 64)),
    (Block(3, 128, 2), Block(3, 128)),
    (Block(3, 256, 2), *(Block(5, 256),) * 4),
    (Block(5, 512, 2, squeeze=True), Block(5, 512, squeeze=True), Block(5, 512), Block(5, 512)),
)
RECOGNITION: Stages = (  # the same at 1/2 of the height and width, which fall to 1/16 and 1/4
    (Block(3, 32),),
    (Block(3, 64), Block(3, 64)),
    (Block(3, 128, (2, 1)), Block(3, 128)),
    (Block(3, 256, (1, 2)), *(Block(5, 256),) * 4),
    (Block(5, 512, (2, 1), squeeze=True), Block(5, 512, squeeze=True), Block(5, 512, (2, 1)), Block(5, 512)),
)


class PPLCNetV3(PPLCNet):
    """images [B, 3, H, W] -> the maps of all stages but the first, from fine to coarse, `channels` deep.

    With DETECTION they are of 1/4, 1/8, 1/16 and 1/32 of the size (rounded up); the last one of RECOGNITION is of 1/16 of the
    height and 1/4 of the width.
    """

    def __init__(self, stages: Stages, *, scale: float, merged: bool = False) -> None:
        """`scale`: how many channels there are, as a share of the published ones; `merged`: as in RepConv."""
        super().__init__(scale, stages, multiple=16, stem=ConvBN, conv=partial(RepConv, merged=merged))


class NarrowedLCNetV3(PPLCNetV3):
    """The same with fewer channels in its maps, but those of the finest, as the detectors of PP-OCRv4 have it."""

    def __init__(self, *, scale: float, merged: bool) -> None:
        super().__init__(DETECTION, scale=scale, merged=merged)
        wide, self.channels = self.channels, tuple(int(channels * scale) for channels in NARROWED)
        self.narrow = nn.ModuleList(nn.Conv2d(*each, 1) for each in zip(wide, self.channels, strict=True))
        initialise_as_paddle(self.narrow)

    def forward(self, images: Tensor) -> list[Tensor]:
        return [narrow(x) for narrow, x in zip(self.narrow, super().forward(images), strict=True)]


def pp_lcnet_v3(strides: Sequence[Stride], *, scale: float = 0.75, merged: bool = False) -> Backbone:
    """PP-LCNetV3 as the detectors of PP-OCRv4 have it; for networks that read text lines, that of its recognisers.

    `scale`: channels as a share of the published ones. `merged`: as in exported files, with one convolution where there are
    several in training.
    """
    if isinstance(strides[-1], tuple):
        return PPLCNetV3(RECOGNITION, scale=scale, merged=merged)
    return NarrowedLCNetV3(scale=scale, merged=merged)


class RepConv(nn.Module):
    """A convolution, rescaled and, unless it halves both sides, put through hard-swish: [B, in, H, W] -> [B, out, h, w].

    It is a ConvSum or, `merged`, a single convolution with a bias. That is the form of exported files, and it can
    be trained further.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: Stride = 1,
        groups: int = 1,
        merged: bool = False,
    ) -> None:
        super().__init__()
        build = _build_conv if merged else ConvSum
        self.conv: nn.Module = build(in_channels, out_channels, kernel_size, stride, groups)
        self.before = Affine()
        self.after = Affine() if stride != 2 else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.before(self.conv(x))
        return out if self.after is None else self.after(F.hardswish(out))


class ConvSum(nn.Module):
    """[B, in, H, W] -> [B, out, h, w]: the sum of several convolutions of the same map, each with a norm.

    They are BRANCHES of the full kernel, one of 1x1 where the kernel is larger, and the map itself where its shape stays.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: Stride, groups: int) -> None:
        super().__init__()
        sizes = [kernel_size] * BRANCHES
        self.full = nn.ModuleList(ConvBN(in_channels, out_channels, size, stride=stride, groups=groups) for size in sizes)
        self.small = ConvBN(in_channels, out_channels, 1, stride=stride, groups=groups) if kernel_size > 1 else None
        self.identity = BatchNorm2d(in_channels) if in_channels == out_channels and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        first, *others = [part for part in (self.identity, self.small, *self.full) if part is not None]
        out: Tensor = first(x)
        for part in others:
            out = out + part(x)
        return out

    @torch.no_grad()
    def merge_branches(self) -> nn.Conv2d:
        """The single convolution that does the same in evaluation mode."""
        convs = [_fold_norm(part) for part in self.full]
        single, parts = convs[0], [(conv.weight, conv.bias) for conv in convs]
        if self.small is not None:
            small, middle = _fold_norm(self.small), single.kernel_size[0] // 2
            parts.append((F.pad(small.weight, (middle,) * 4), small.bias))
        if self.identity is not None:
            norm = self.identity
            assert norm.running_mean is not None and norm.running_var is not None
            factors = norm.weight / (norm.running_var + norm.eps).sqrt()
            kernels = nn.init.dirac_(torch.empty_like(single.weight), single.groups) * factors[:, None, None, None]
            parts.append((kernels, norm.bias - norm.running_mean * factors))
        weights, biases = zip(*parts, strict=True)
        single.weight, single.bias = (nn.Parameter(torch.stack(each).sum(0)) for each in (weights, biases))
        return single


def _build_conv(in_channels: int, out_channels: int, kernel_size: int, stride: Stride, groups: int) -> nn.Conv2d:
    Conv = DepthwiseConv2d if groups == in_channels > 1 else nn.Conv2d
    return Conv(in_channels, out_channels, kernel_size, stride, kernel_size // 2, groups=groups)


def _fold_norm(part: nn.Module) -> nn.Conv2d:
    """A convolution with its norm, as they are in evaluation mode."""
    assert isinstance(part, ConvBN)
    return fuse_conv_bn_eval(part.conv, part.norm)


class Affine(nn.Module):
    """x [...] -> scale * x + bias, both learned and the same for all channels."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        # Without an axis, they do not turn a map of half precision into one of single.
        return self.scale.squeeze() * x + self.bias.squeeze()


def merge(network: nn.Module) -> None:
    """Puts single convolutions for the sums of `network`, for evaluation and export."""
    for module in network.eval().modules():
        if isinstance(module, RepConv) and isinstance(module.conv, ConvSum):
            module.conv = module.conv.merge_branches()
