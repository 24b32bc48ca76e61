"""Layers shared by several networks. Shapes: B batch, C channels."""

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
    """Convolution with "same" padding, and batch norm; a stride of 2 halves the map, rounding up.

    The batch norm cancels a `bias` of the convolution; the option exists for networks whose published weights have one.
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
        # "Same" padding; dilated kernels need as much more to keep the size.
        padding = dilation * (down // 2), dilation * (right // 2)
        Conv = DepthwiseConv2d if groups == in_channels > 1 else nn.Conv2d
        self.conv = Conv(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        self.norm = BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        normalised: Tensor = self.norm(self.conv(x))
        return normalised


class DepthwiseConv2d(nn.Conv2d):
    """Depthwise convolution; on CPUs in float32, even under autocast, and with a kernel of 1 x 1 as a multiplication.

    oneDNN's backward pass in bf16 takes up to three times as long (torch 2.15, AVX-512). With dilation and channels last it is
    also wrong: the gradient of the weights is uninitialised memory, at times NaN. Kernels of 1 x 1 it computes channel by
    channel.
    """

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        if x.device.type != 'cpu':
            return super().forward(x)
        # Under autocast on a CPU: cast, compute in float32, and cast back, so that neighbours see half precision.
        if torch.is_autocast_enabled('cpu'):
            with torch.autocast('cpu', enabled=False):
                return self._compute(x.float()).to(torch.get_autocast_dtype('cpu'))
        return self._compute(x)

    def _compute(self, x: Tensor) -> Tensor:
        is_product = self.kernel_size == self.stride == (1, 1) and self.bias is None and not is_exporting()
        return x * self.weight.view(1, -1, 1, 1) if is_product else super().forward(x)


class ConvBNReLU(ConvBN):
    """ConvBN with ReLU."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        return F.relu(super().forward(x), inplace=True)


class ConvBNReLU6(ConvBN):
    """ConvBN with ReLU6."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        return F.relu6(super().forward(x), inplace=True)


class ConvBNSiLU(ConvBN):
    """ConvBN with SiLU (swish in some papers)."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        return F.silu(super().forward(x))


class ConvBNHardswish(ConvBN):
    """ConvBN with hard-swish."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        return F.hardswish(super().forward(x))


class SqueezeExcitation(nn.Module):
    """Squeeze-and-excitation (SE): x [B, C, H, W] -> x * hardsigmoid(fc2(relu(fc1(avg_pool(x))))).

    Hu et al., https://arxiv.org/abs/1709.01507. `slope` of the hard sigmoid: 1/6 as in torch, 0.2 for MobileNetV3 in PaddleOCR.
    """

    def __init__(self, channels: int, *, slope: float = 1 / 6) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, channels // 4, 1)  # fc1, reduction 4
        self.excite = nn.Conv2d(channels // 4, channels, 1)  # fc2
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        # Squeeze: one mean per channel; excitation: one factor per channel.
        means = x.mean((2, 3), keepdim=True)  # [B, C, 1, 1]
        # torch's hardsigmoid is relu6(x + 3) / 6, of slope 1/6: scale its input for another slope.
        return x * F.hardsigmoid(self.excite(F.relu(self.squeeze(means))) * (6 * self.slope))


class DepthwiseSeparable(nn.Module):
    """Depthwise separable convolution, x [B, in, H, W] -> [B, out, h, w]: a depthwise and a pointwise convolution."""

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
        """`squeeze`: squeeze-and-excitation between the two convolutions; `conv` builds these."""
        super().__init__()
        self.depthwise = conv(in_channels, in_channels, kernel_size, stride=stride, groups=in_channels)
        self.squeeze = SqueezeExcitation(in_channels) if squeeze else nn.Identity()
        self.pointwise = conv(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.pointwise(self.squeeze(self.depthwise(x)))
        return out


def run_stages(stages: Iterable[nn.Module], x: Tensor) -> list[Tensor]:
    """Run `stages` in sequence on `x` and return all their outputs."""
    maps = []
    for stage in stages:
        x = stage(x)
        maps.append(x)
    return maps


def scale_channels(channels: int, scale: float, *, multiple: int = 8) -> int:
    """Return `channels` times `scale`, rounded to a `multiple`, but never down by more than a tenth (make_divisible)."""
    # make_divisible of the MobileNet code.
    rounded = max(multiple, int(channels * scale + multiple / 2) // multiple * multiple)
    return rounded if rounded >= 0.9 * channels * scale else rounded + multiple


def is_exporting() -> bool:
    """Return whether torch.export records the calls.

    Up to torch 2.11, `torch.compiler.is_exporting` is true while torch.compile traces, too.
    """
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def resize(x: Tensor, like: Tensor, *, align_corners: bool = False) -> Tensor:
    """Resize `x` [B, C, h, w] bilinearly to the height and width of `like`; `align_corners` as in `F.interpolate`."""
    size = like.shape[-2:]
    if not is_exporting() and x.shape[-2:] == size:  # the comparison would fix the size in an export
        return x
    return F.interpolate(x, size, mode='bilinear', align_corners=align_corners)


def adaptive_avg_pool(x: Tensor, cells: int) -> Tensor:
    """Return the means [B, C, cells, cells] of `x` [B, C, H, W]: `F.adaptive_avg_pool2d`, in a form that ONNX can express."""
    if not is_exporting():
        return F.adaptive_avg_pool2d(x, cells)
    if cells == 1:
        return x.mean((2, 3), keepdim=True)
    # As matrix products: ONNX has no adaptive pooling.
    rows, columns = (pooling_matrix(length, cells, x) for length in x.shape[-2:])
    means: Tensor = rows @ x @ columns.T
    return means


def pooling_matrix(length: int, cells: int, like: Tensor) -> Tensor:
    """Return the averaging matrix [cells, length] of adaptive pooling; cells overlap where they do not divide the length."""
    place, cell = torch.arange(length, device=like.device), torch.arange(cells, device=like.device)[:, None]
    # Cell i covers floor(i * length / cells) to ceil((i + 1) * length / cells), as in torch.
    begins, ends = cell * length // cells, ((cell + 1) * length + cells - 1) // cells
    inside = torch.logical_and(place >= begins, place < ends)  # not `&`: coremltools knows only the function
    shares = inside.to(like.dtype)
    return shares / shares.sum(1, keepdim=True)


def upsample_logits(logits: Tensor, images: Tensor, *, align_corners: bool = False) -> Tensor:
    """Upsample `logits` [B, K, h, w] to the size of `images`: [B, K, H, W], at least float32, contiguous (NCHW).

    Casting and layout change come first, while the tensor is small: at full size, where logits are the largest tensor of a
    step, each would cost a pass over it, as would a softmax on channels last.
    """
    # Small tensor first: cast and change the layout before upsampling.
    x = at_least_float32(logits).contiguous()
    # Without a gradient, or without a change of size, torch's own operation is as good.
    if not x.requires_grad or x.shape[-2:] == images.shape[-2:]:
        return resize(x, images, align_corners=align_corners)
    upsampled: Tensor = _Upsample.apply(x, images.shape[-2:], align_corners)
    return upsampled


class _Upsample(torch.autograd.Function):
    """Bilinear upsampling x [B, K, h, w] -> [B, K, H, W] whose gradient is two matrix products.

    torch's own gradient takes many times as long on a CPU, and is not deterministic on CUDA.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: tuple[int, int], align_corners: bool) -> Tensor:
        ctx.size, ctx.align_corners = x.shape[-2:], align_corners
        return F.interpolate(x, size, mode='bilinear', align_corners=align_corners)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads  # [B, K, H, W]
        # Transposed of the interpolation: one small matrix per axis.
        (h, w), (H, W) = ctx.size, grad.shape[-2:]
        rows, columns = (_interpolation_matrix(few, many, ctx.align_corners, grad) for few, many in ((h, H), (w, W)))
        # One product per map: in one product of all maps, the last bits of a sample depend on the rest of the batch.
        return rows @ (grad @ columns.T.expand(*grad.shape[:2], W, w)), None, None


def _interpolation_matrix(few: int, many: int, align_corners: bool, like: Tensor) -> Tensor:
    """Return the matrix [few, many] of linear interpolation from `few` to `many` points: row i is the response to point i."""
    # Row i is the interpolation of a unit impulse at point i.
    values = torch.eye(few, dtype=like.dtype, device=like.device)
    return F.interpolate(values[None], many, mode='linear', align_corners=align_corners)[0]


def use_group_norms(model: nn.Module, groups: int) -> None:
    """Replace each batch norm of `model` by a group norm of `groups` groups, or of the nearest divisor of its channels.

    Wu & He, https://arxiv.org/abs/1803.08494. Ties go to the larger divisor.
    """
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            if isinstance(norm, BatchNorm2d):
                # Groups must divide the channels.
                channels = norm.num_features
                fitting = [count for count in range(1, channels + 1) if channels % count == 0]
                nearest = min(fitting, key=lambda count: (abs(count - groups), -count))
                setattr(parent, name, nn.GroupNorm(nearest, channels, eps=norm.eps))


def initialise_convs(model: nn.Module) -> None:
    """Initialise every convolution of `model` for training from scratch: He normal by fan-in, biases zero.

    Fan-in, as in PaddleSeg's heads. Fan-out would fail twice: torch counts it over all groups, which makes depthwise kernels
    too small by the square root of their channels, and a classifier has few outputs, which makes its first logits large.
    PaddleSeg initialises STDC with a standard deviation of 0.001; in a small trial from scratch that learned more slowly.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, mode='fan_in', nonlinearity='relu')
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def initialise_as_paddle(model: nn.Module) -> None:
    """Initialise convolutions and linear layers of `model` with Paddle's defaults; biases are zero.

    Convolutions: normal, of variance 2 / (kernel area x input channels), counting all channels whatever the groups. Linear
    layers: Glorot (Xavier) uniform.
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


@torch.no_grad()
def set_input_channels(network: nn.Module, channels: int) -> None:
    """Replace the weights of the convolutions of RGB images in `network` by those for `channels`, from `inflate`."""
    for conv in network.modules():
        if isinstance(conv, nn.Conv2d) and conv.in_channels == 3 != channels:
            conv.in_channels, conv.weight = channels, nn.Parameter(inflate(conv.weight, channels))


def inflate(weight: Tensor, channels: int) -> Tensor:  # [O, 3, h, w] -> [O, channels, h, w]
    """Weights of a convolution for images of `channels` bands, from those for RGB.

    The three are repeated in order, and scaled so that activations keep their size; one band gets their sum. As in timm.
    """
    if channels == 1:
        return weight.sum(1, keepdim=True)
    repeated = weight.repeat(1, -(-channels // 3), 1, 1)[:, :channels]
    return repeated * (3 / channels)
