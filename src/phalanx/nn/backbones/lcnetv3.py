"""PP-LCNetV3: PP-LCNet with re-parameterised convolutions, several branches in training and a single one afterwards.

The backbone of PP-OCRv4 and PP-OCRv5 mobile, of detectors and recognisers; layer order as in PaddleOCR. Branches as in
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

BRANCHES = 4  # branches with the full kernel, as published
NARROWED = (16, 24, 56, 480)  # output channels of NarrowedLCNetV3, at scale 1
DETECTION: Stages = (  # the first at stride 2, each further one halves the map
    (Block(3, 32),),
    (Block(3, 64, 2), Block(3, 64)),
    (Block(3, 128, 2), Block(3, 128)),
    (Block(3, 256, 2), *(Block(5, 256),) * 4),
    (Block(5, 512, 2, squeeze=True), Block(5, 512, squeeze=True), Block(5, 512), Block(5, 512)),
)
RECOGNITION: Stages = (  # from stride 2 to 16 in height and 4 in width
    (Block(3, 32),),
    (Block(3, 64), Block(3, 64)),
    (Block(3, 128, (2, 1)), Block(3, 128)),
    (Block(3, 256, (1, 2)), *(Block(5, 256),) * 4),
    (Block(5, 512, (2, 1), squeeze=True), Block(5, 512, squeeze=True), Block(5, 512, (2, 1)), Block(5, 512)),
)


class PPLCNetV3(PPLCNet):
    """images [B, 3, H, W] -> the maps of all stages but the first, from fine to coarse, with `channels`.

    Strides are 4, 8, 16 and 32 with DETECTION; the last map of RECOGNITION has stride 16 in height and 4 in width.
    """

    def __init__(self, stages: Stages, *, scale: float, merged: bool = False) -> None:
        """`scale`: multiplies the published channels; `merged`: as in RepConv."""
        super().__init__(scale, stages, multiple=16, stem=ConvBN, conv=partial(RepConv, merged=merged))


class NarrowedLCNetV3(PPLCNetV3):
    """PP-LCNetV3 with a 1x1 convolution on each map that reduces its channels, as in the detectors of PP-OCRv4."""

    def __init__(self, *, scale: float, merged: bool) -> None:
        super().__init__(DETECTION, scale=scale, merged=merged)
        # 1x1 convolutions to the channels that the neck of the detector expects.
        wide, self.channels = self.channels, tuple(int(channels * scale) for channels in NARROWED)
        self.narrow = nn.ModuleList(nn.Conv2d(*each, 1) for each in zip(wide, self.channels, strict=True))
        initialise_as_paddle(self.narrow)

    def forward(self, images: Tensor) -> list[Tensor]:
        return [narrow(x) for narrow, x in zip(self.narrow, super().forward(images), strict=True)]


def pp_lcnet_v3(strides: Sequence[Stride], *, scale: float = 0.75, merged: bool = False) -> Backbone:
    """PP-LCNetV3 of the detectors of PP-OCRv4, or of its recognisers for networks that read text lines.

    `scale`: multiplies the published channels. `merged`: re-parameterised, with single convolutions, as in exported files.
    """
    if isinstance(strides[-1], tuple):
        return PPLCNetV3(RECOGNITION, scale=scale, merged=merged)
    return NarrowedLCNetV3(scale=scale, merged=merged)


class RepConv(nn.Module):
    """Learnable re-parameterised layer [B, in, H, W] -> [B, out, h, w].

    A convolution and Affine; without stride 2 also hard-swish and Affine. The convolution is
    a ConvSum or, if `merged`, a single one with bias: the form of exported files, which can be trained further.
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
        # Exported files have the merged form; training from scratch uses the branches.
        build = _build_conv if merged else ConvSum
        self.conv: nn.Module = build(in_channels, out_channels, kernel_size, stride, groups)
        # LearnableAffineBlock in the original, before and after the activation.
        self.before = Affine()
        self.after = Affine() if stride != 2 else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.before(self.conv(x))
        return out if self.after is None else self.after(F.hardswish(out))


class ConvSum(nn.Module):
    """Re-parameterisable sum of parallel branches, [B, in, H, W] -> [B, out, h, w], each with a batch norm.

    BRANCHES convolutions of the full kernel, a 1x1 one where the kernel is larger, and identity where the shape stays.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: Stride, groups: int) -> None:
        super().__init__()
        # conv_kxk, conv_1x1 and identity of the original.
        sizes = [kernel_size] * BRANCHES
        self.full = nn.ModuleList(ConvBN(in_channels, out_channels, size, stride=stride, groups=groups) for size in sizes)
        self.small = ConvBN(in_channels, out_channels, 1, stride=stride, groups=groups) if kernel_size > 1 else None
        self.identity = BatchNorm2d(in_channels) if in_channels == out_channels and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        # One by one: stacking would hold all branches in memory.
        first, *others = [part for part in (self.identity, self.small, *self.full) if part is not None]
        out: Tensor = first(x)
        for part in others:
            out = out + part(x)
        return out

    @torch.no_grad()
    def merge_branches(self) -> nn.Conv2d:
        """Return the single convolution that equals the sum in evaluation mode."""
        # Fold each norm into its convolution, pad the kernels to one size, then add up kernels and biases.
        convs = [_fold_norm(part) for part in self.full]
        single, parts = convs[0], [(conv.weight, conv.bias) for conv in convs]
        if self.small is not None:
            small, middle = _fold_norm(self.small), single.kernel_size[0] // 2
            parts.append((F.pad(small.weight, (middle,) * 4), small.bias))
        if self.identity is not None:
            norm = self.identity
            assert norm.running_mean is not None and norm.running_var is not None
            # Identity is a kernel with 1 in its middle.
            factors = norm.weight / (norm.running_var + norm.eps).sqrt()
            kernels = nn.init.dirac_(torch.empty_like(single.weight), single.groups) * factors[:, None, None, None]
            parts.append((kernels, norm.bias - norm.running_mean * factors))
        weights, biases = zip(*parts, strict=True)
        single.weight, single.bias = (nn.Parameter(torch.stack(each).sum(0)) for each in (weights, biases))
        return single


def _build_conv(in_channels: int, out_channels: int, kernel_size: int, stride: Stride, groups: int) -> nn.Conv2d:
    """Return a single convolution with bias and "same" padding."""
    Conv = DepthwiseConv2d if groups == in_channels > 1 else nn.Conv2d
    return Conv(in_channels, out_channels, kernel_size, stride, kernel_size // 2, groups=groups)


def _fold_norm(part: nn.Module) -> nn.Conv2d:
    """Return the convolution with its batch norm folded in, as in evaluation mode."""
    assert isinstance(part, ConvBN)
    return fuse_conv_bn_eval(part.conv, part.norm)


class Affine(nn.Module):
    """Learned affine map x -> scale * x + bias, with scalar scale and bias."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        # Scalar tensors without axes do not promote a map in half precision to float32.
        return self.scale.squeeze() * x + self.bias.squeeze()


def merge(network: nn.Module) -> None:
    """Replace every ConvSum of `network` by its single convolution, for evaluation and export."""
    for module in network.eval().modules():
        if isinstance(module, RepConv) and isinstance(module.conv, ConvSum):
            module.conv = module.conv.merge_branches()
