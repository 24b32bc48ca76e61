"""Layers that several networks are made of. Shapes: B batch, C channels."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.precision import at_least_float32
from phalanx.parallel.norms import BatchNorm2d

Stride = int | tuple[int, int]  # (down, right): text lines are halved in height and keep their width


class ConvBN(nn.Module):
    """A convolution that keeps the size of the map but for its stride (2 halves it, rounding up), and the norm of its result.

    Its windows leave out `dilation` - 1 places between those they see. The norm takes any `bias` of the convolution away again;
    it is there for networks whose published weights have one.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        *,
        stride: Stride = 1,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        down, right = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        padding = dilation * (down // 2), dilation * (right // 2)
        Conv = DepthwiseConv2d if groups == in_channels > 1 else nn.Conv2d
        self.conv = Conv(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        self.norm = BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        normalised: Tensor = self.norm(self.conv(x))
        return normalised


class DepthwiseConv2d(nn.Conv2d):
    """Each channel filtered by itself; on CPUs in float32, also under autocast.

    oneDNN's backward pass in bf16 takes up to three times as long (torch 2.15, AVX-512). With gaps between the places that a
    window sees, and maps in channels last, it is wrong besides: the gradient of the weights is unwritten memory, at times NaN.
    """

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        if x.device.type != 'cpu' or not torch.is_autocast_enabled('cpu'):
            return super().forward(x)
        with torch.autocast('cpu', enabled=False):
            return super().forward(x.float()).to(torch.get_autocast_dtype('cpu'))


class ConvBNReLU(ConvBN):
    """The same, rectified."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        return F.relu(super().forward(x), inplace=True)


class ConvBNReLU6(ConvBN):
    """The same, rectified and at most 6."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        return F.relu6(super().forward(x), inplace=True)


class ConvBNSiLU(ConvBN):
    """The same, and SiLU (some papers call it swish)."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        return F.silu(super().forward(x))


class ConvBNHardswish(ConvBN):
    """The same, and hard-swish."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        return F.hardswish(super().forward(x))


class SqueezeExcitation(nn.Module):
    """x [B, C, H, W] -> the same, each channel scaled by a share in [0, 1] that the means of all channels decide.

    Hu et al., https://arxiv.org/abs/1709.01507. `slope` is that of the hard sigmoid: 1/6, torch's own, but for MobileNetV3 in
    PaddleOCR, which takes 0.2.
    """

    def __init__(self, channels: int, *, slope: float = 1 / 6) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, channels // 4, 1)
        self.excite = nn.Conv2d(channels // 4, channels, 1)
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)  # [B, C, 1, 1]
        return x * F.hardsigmoid(self.excite(F.relu(self.squeeze(means))) * (6 * self.slope))


class DepthwiseSeparable(nn.Module):
    """x [B, in, H, W] -> [B, out, h, w]: each channel filtered by itself, then all of them mixed in each pixel."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: Stride = 1,
        squeeze: bool = False,
        conv: Callable[..., nn.Module] = ConvBNHardswish,
    ) -> None:
        """`squeeze`: squeeze-and-excitation between the two convolutions; `conv` makes these."""
        super().__init__()
        self.depthwise = conv(in_channels, in_channels, kernel_size, stride=stride, groups=in_channels)
        self.squeeze = SqueezeExcitation(in_channels) if squeeze else nn.Identity()
        self.pointwise = conv(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.pointwise(self.squeeze(self.depthwise(x)))
        return out


def run_stages(stages: Iterable[nn.Module], x: Tensor) -> list[Tensor]:
    """What each of `stages` makes of what the one before made, the first of `x`."""
    maps = []
    for stage in stages:
        x = stage(x)
        maps.append(x)
    return maps


def scale_channels(channels: int, scale: float, *, multiple: int = 8) -> int:
    """`channels` times `scale`, rounded to a multiple of `multiple`, but not down by more than a tenth."""
    rounded = max(multiple, int(channels * scale + multiple / 2) // multiple * multiple)
    return rounded if rounded >= 0.9 * channels * scale else rounded + multiple


def resize(x: Tensor, like: Tensor, *, align_corners: bool = False) -> Tensor:
    """`x` [B, C, h, w] brought to the height and width of `like`, bilinearly.

    Pixels are areas; with `align_corners` they are points, those in the corners stay there, and the others lie evenly between.
    """
    size = like.shape[-2:]
    if not torch.compiler.is_exporting() and x.shape[-2:] == size:  # a question that would fix the size of an export
        return x
    return F.interpolate(x, size, mode='bilinear', align_corners=align_corners)


def adaptive_avg_pool(x: Tensor, cells: int) -> Tensor:
    """[B, C, cells, cells]: the means of `x` [B, C, H, W] on a grid, as `F.adaptive_avg_pool2d` has them."""
    if not torch.compiler.is_exporting():
        return F.adaptive_avg_pool2d(x, cells)
    if cells == 1:
        return x.mean((2, 3), keepdim=True)
    rows, columns = (pooling_matrix(length, cells, x) for length in x.shape[-2:])  # ONNX has no adaptive pooling
    means: Tensor = rows @ x @ columns.T
    return means


def pooling_matrix(length: int, cells: int, like: Tensor) -> Tensor:
    """[cells, length] how much of each place is in each of `cells`, which overlap where they do not divide the length."""
    place, cell = torch.arange(length, device=like.device), torch.arange(cells, device=like.device)[:, None]
    begins, ends = cell * length // cells, ((cell + 1) * length + cells - 1) // cells
    inside = torch.logical_and(place >= begins, place < ends)  # by its name, which coremltools knows
    shares = inside.to(like.dtype)
    return shares / shares.sum(1, keepdim=True)


def upsample_logits(logits: Tensor, images: Tensor, *, align_corners: bool = False) -> Tensor:
    """`logits` [B, K, h, w] brought to the size of `images`: [B, K, H, W], at least float32, the map of a class in one piece.

    They are cast and laid out while they are small: at the size of the images, where they are the largest tensor of a step, it
    would be a pass over all of it each, and a softmax over maps in channels last makes that pass itself.
    """
    x = at_least_float32(logits).contiguous()
    if not x.requires_grad or x.shape[-2:] == images.shape[-2:]:
        return resize(x, images, align_corners=align_corners)
    enlarged: Tensor = _Upsample.apply(x, images.shape[-2:], align_corners)
    return enlarged


class _Upsample(torch.autograd.Function):
    """x [B, K, h, w] -> [B, K, H, W], bilinearly, with a gradient that is two matrix products.

    torch's own gradient takes many times as long on a CPU, and on CUDA adds up in another order each time.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: tuple[int, int], align_corners: bool) -> Tensor:
        ctx.size, ctx.align_corners = x.shape[-2:], align_corners
        return F.interpolate(x, size, mode='bilinear', align_corners=align_corners)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads  # [B, K, H, W]
        (h, w), (H, W) = ctx.size, grad.shape[-2:]
        rows, columns = (_interpolation_matrix(few, many, ctx.align_corners, grad) for few, many in ((h, H), (w, W)))
        # One product for each map: in a product of all of them the last bits of a sample depend on who else is in the batch.
        return rows @ (grad @ columns.T.expand(*grad.shape[:2], W, w)), None, None


def _interpolation_matrix(few: int, many: int, align_corners: bool, like: Tensor) -> Tensor:
    """[few, many] how much of each value of a line is in each place of the longer line that is interpolated from it."""
    values = torch.eye(few, dtype=like.dtype, device=like.device)
    return F.interpolate(values[None], many, mode='linear', align_corners=align_corners)[0]


def use_group_norms(model: nn.Module, groups: int) -> None:
    """Puts a group norm in the place of each batch norm of `model`, of `groups` groups or the nearest number that fits.

    Wu & He, https://arxiv.org/abs/1803.08494. Of two numbers as near, the larger one.
    """
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            if isinstance(norm, BatchNorm2d):
                channels = norm.num_features
                fitting = [count for count in range(1, channels + 1) if channels % count == 0]
                nearest = min(fitting, key=lambda count: (abs(count - groups), -count))
                setattr(parent, name, nn.GroupNorm(nearest, channels, eps=norm.eps))


def initialise_convs(model: nn.Module) -> None:
    """Draws every convolution of `model` for training from scratch: He normal by fan-in, biases zero.

    Fan-in is what PaddleSeg's heads start from. Fan-out would be wrong in two places: torch counts it over all groups, which
    makes depthwise kernels too small by the square root of their channels, and a classifier has few outputs, which makes its
    first logits large. PaddleSeg draws STDC with a deviation of 0.001; in a small trial from scratch that learned more slowly.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, mode='fan_in', nonlinearity='relu')
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def initialise_as_paddle(model: nn.Module) -> None:
    """Draws convolutions and linear layers of `model` as Paddle does by itself; biases are zero.

    Convolutions: normal, of variance 2 / (kernel area x input channels), all channels counted whatever the groups. Linear
    layers: Glorot uniform.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=math.sqrt(2 / (math.prod(module.kernel_size) * module.in_channels)))
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
