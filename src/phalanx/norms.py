"""Batch normalisation whose statistics can be those of the whole step, over ranks and micro-batches.

`torch.nn.SyncBatchNorm` runs on CUDA only and knows nothing of micro-batches; this one runs anywhere.
Shapes: B batch, C channels.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx import dist
from phalanx.step import WholeStep

NormSync = Literal['off', 'node', 'global', 'frozen']
Unread = tuple[Tensor, Tensor] | tuple[None, None]


class BatchNorm2d(nn.BatchNorm2d):
    """Batch norm as the Paddle projects have it: the running variance follows the biased batch variance.

    By itself it normalises with the statistics of the batch it sees; `synchronise` makes it use those of the whole step, and
    `freeze` the running ones, which then stay.
    """

    whole: WholeStep | None = None  # the step to take statistics from; None: this batch alone
    group: dist.Group | None = None  # the ranks to take them from; None: all
    is_frozen: bool = False

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> the same
        if not self.training:
            return super().forward(x)
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        if self.is_frozen:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        if self.whole is None:
            mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
            normalised = F.batch_norm(
                x, mean, var, self.weight, self.bias, True, 1.0, self.eps
            )  # momentum 1: they become the batch's
            count = x.numel() // x.shape[1]
            var = var * ((count - 1) / count)  # torch gives the unbiased one
        else:
            sums = self.whole.sum(_Sums.apply(x), self.group)
            normalised, mean, var = _Normalise.apply(x, sums, self.weight, self.bias, self.eps)
        if self.whole is None or self.whole.is_first:
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var, self.momentum)
        return normalised


def settle(model: nn.Module, sync: NormSync, whole: WholeStep, node: dist.Group | None) -> None:
    """Gives the batch norms of `model` the statistics that a recipe's `norm_sync` names. Raises as `synchronise` does."""
    match sync:
        case 'off':
            pass
        case 'node':
            synchronise(model, whole, node)
        case 'global':
            synchronise(model, whole)
        case 'frozen':
            freeze(model)


def freeze(model: nn.Module) -> None:
    """Lets every batch norm of `model` normalise as in evaluation, while it trains too. Raises as `synchronise` does."""
    for norm in _batch_norms(model):
        norm.is_frozen = True


def synchronise(model: nn.Module, whole: WholeStep, group: dist.Group | None = None) -> bool:
    """Lets every batch norm of `model` use the statistics of the whole step over `group` (None: all ranks).

    Returns whether there was one. Raises ValueError for a batch norm of another class: it would silently stay local.
    """
    found = _batch_norms(model)
    for norm in found:
        norm.whole, norm.group = whole, group
    return bool(found)


def _batch_norms(model: nn.Module) -> list[BatchNorm2d]:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, BatchNorm2d):
            kind = type(module).__name__
            raise ValueError(f'{name} is a {kind}, which cannot be synchronised or frozen; use norms.BatchNorm2d')
    return [module for module in model.modules() if isinstance(module, BatchNorm2d)]


class _Sums(torch.autograd.Function):
    """x [B, C, H, W] -> [2C + 1] float64: the sum and the sum of squares of each channel, and of how many values they are.

    What ranks and micro-batches exchange. The moments of each sample are exact to a bit or two and do not depend on who else
    is in the batch; added up in float64 and rounded once, they give the same mean and variance to the bit for nearly every cut.
    That matters: a difference in the last bit turns some ReLU on or off, and the gradient differs a thousand times more.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        means, variances = _moments_of_samples(x)  # [B, C]
        means = means.double()
        squares = means.square() + variances
        return torch.cat([means.sum(0), squares.sum(0), means.new_full((1,), len(x))]).mul_(x.shape[2] * x.shape[3])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        offset, slope = grads[0][:-1].to(_statistics(x)).chunk(2)
        slope = 2 * slope
        # offset + slope x, by the kernel of the norm: it takes half-precision maps with float32 numbers a channel in one pass
        return F.batch_norm(x, torch.zeros_like(slope), torch.ones_like(slope), slope, offset, False, 0.0, 0.0)


def _moments_of_samples(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each map of `x`, [B, C] each, by the kernel of torch's own batch norm."""
    B, C, H, W = x.shape
    if x.is_contiguous():
        mean, var = _moments(x.view(1, B * C, H, W), _unread(B * C, x))
        return mean.view(B, C), var.view(B, C)
    if x.is_cuda:  # one kernel for all samples; on CPUs `var_mean` takes ten times as long
        var, mean = torch.var_mean(x.to(_statistics(x)), (2, 3), correction=0)
        return mean, var
    unread = _unread(C, x)
    each = [_moments(sample, unread) for sample in torch.split(x, 1)]  # channels last
    return torch.stack([mean for mean, _ in each]), torch.stack([var for _, var in each])


def _moments(maps: Tensor, unread: Unread) -> tuple[Tensor, Tensor]:
    """Mean and biased variance [C] of `maps` [1, C, H, W]; `unread` is changed."""
    mean, var = unread
    moments: tuple[Tensor, Tensor] = torch.batch_norm_update_stats(maps, mean, var, 0.0)
    return moments


def _unread(C: int, x: Tensor) -> Unread:
    """Running statistics for the kernel to keep. With float32 ones it takes maps in half precision, which else were cast."""
    dtype = _statistics(x)
    if x.dtype == dtype:
        return None, None
    mean, var = x.new_zeros(2, C, dtype=dtype)
    return mean, var


def _statistics(x: Tensor) -> torch.dtype:
    """The type of the statistics of a map: half-precision maps keep float32 ones."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(var + eps) * weight + bias, and mean and biased variance [C], which are not differentiable.

    These come from `sums` of the whole step, as `_Sums` makes them, and it is differentiable in those too, by torch's fused
    kernels: that of evaluation mode gives d weight = sum g (x - mean) / std and d bias = sum g; the gradients of mean and
    variance are these two times numbers a channel, so no further pass over the map is needed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, sums: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        mean, squares = (sums[:-1] / sums[-1]).chunk(2)
        var = torch.addcmul(squares, mean, mean, value=-1).clamp_(min=0)  # safe in float64
        mean, var = mean.to(_statistics(x)), var.to(_statistics(x))
        ctx.save_for_backward(x, sums, mean, var, weight)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, var)
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps), mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, sums, mean, var, weight = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last if _is_channels_last(x) else torch.contiguous_format)
        inverse = (var + ctx.eps).rsqrt()
        # The kernels take them as running statistics (mean, var) or, on CUDA in channels last, as saved ones (mean, inverse).
        grad_x, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, mean, var, mean, inverse, False, ctx.eps, [True, True, True]
        )
        scale = -weight * inverse
        grad_mean, grad_var = (scale * grad_bias).double(), (0.5 * scale * inverse * grad_weight).double()
        grad_sum = torch.addcmul(grad_mean, mean.double(), grad_var, value=-2)  # var = squares - mean^2
        grad_sums = torch.cat([grad_sum, grad_var, grad_sum.new_zeros(1)]) / sums[-1]
        return grad_x, grad_sums, grad_weight, grad_bias, None


def _is_channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
