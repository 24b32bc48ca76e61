"""Batch normalisation (SyncBN) with statistics of one rank or of a group of ranks.

`synchronise` picks one of three implementations for each norm of a network, once, at the start of a run:

- one rank per group -> `F.batch_norm`: the same operations as plain PyTorch;
- several, on CUDA -> torch's own kernels of synchronised norms, which read a map once, in its type and layout;
- several, on CPUs -> torch's kernels of ordinary norms around one all-reduce each way (`nn.SyncBatchNorm` runs on CUDA only).

Statistics are shared over ranks, not over micro-batches: with `norm_sync: global` each micro-batch is normalised by its
statistics over all ranks. Shapes: B batch, C channels, R ranks.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.parallel import dist

NormSync = Literal['off', 'node', 'global', 'frozen']


@dataclass(slots=True)
class Statistics:
    """Mean and variance [C] of the latest batch of a norm.

    An object of its own, since setting an attribute of a module takes longer than the rest of the norm's Python code.
    """

    mean: Tensor
    var: Tensor
    factor: float = 0.0  # from that variance to the biased one; 0: nothing to update


class BatchNorm2d(nn.BatchNorm2d):
    """Batch norm as in the Paddle projects: the running variance follows the biased batch variance.

    By itself it normalises with the statistics of its batch and updates the running ones in `forward`. `synchronise` makes it
    use the statistics of a group of ranks, or frozen running ones, and `RunningStatistics` then updates all norms together.
    """

    group: dist.Group | None = None  # the ranks that share their statistics; None: this rank alone
    is_frozen: bool = False
    is_folded: bool = False
    latest: Statistics | None = None  # for `RunningStatistics`; without it, the running ones are updated by each call

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> the same
        # Evaluation: plain batch norm with the running statistics.
        if not self.training:
            return super().forward(x)
        if self.is_frozen or self.is_folded:
            frozen = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
            return _with_gradient_like(x, frozen)
        # Running statistics are updated later, for all norms together, from `latest`; without it, at the end of this call.
        latest = self.latest
        if latest is None:
            assert self.running_var is not None
            mean, var = torch.zeros(2, x.shape[1], dtype=self.running_var.dtype, device=x.device).unbind()
            latest = Statistics(mean, var)
        elif latest.factor:  # called a second time in one forward pass
            self._follow(latest)
        if self.group is None:
            count = x.numel() // x.shape[1]
            if count < 2:
                raise ValueError(
                    'a batch norm gets one value per channel: use two or more samples per rank, or norm_sync: global or frozen'
                )
            # With momentum 1, the kernel's running statistics become the mean and the unbiased variance of the batch.
            normalised = F.batch_norm(x, latest.mean, latest.var, self.weight, self.bias, True, 1.0, self.eps)
            normalised = _with_gradient_like(x, normalised)
            latest.factor = (count - 1) / count
        else:
            kernels = _SharedOnCuda if x.is_cuda else _SharedOnCpu
            normalised, of_group, var_of_group = kernels.apply(x, self.weight, self.bias, self.eps, self.group)
            latest.mean.copy_(of_group)
            latest.var.copy_(var_of_group)
            latest.factor = 1.0
        if self.latest is None:
            self._follow(latest)
        return normalised

    def folded(self) -> dict[str, Tensor]:
        """Parameters and statistics of an identity norm: one that is folded into the convolution before it."""
        C = self.num_features
        return {
            'weight': torch.ones(C),
            'bias': torch.zeros(C),
            'running_mean': torch.zeros(C),
            'running_var': torch.ones(C) - self.eps,
        }

    @torch.no_grad()
    def _follow(self, latest: Statistics) -> None:
        """Update the running statistics from those of a batch."""
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        self.running_mean.lerp_(latest.mean, self.momentum)
        self.running_var.lerp_(latest.var * latest.factor, self.momentum)
        latest.factor = 0.0


class RunningStatistics:
    """Running statistics of all norms of a model, updated together in a few operations instead of a few per norm.

    Worth its bookkeeping (`latest`): a training forward pass through the backbones of SLANet (73 norms) and
    PP-LiteSeg (48) takes 125 operations instead of 257 and 267, and 1 / 1.13 of the processor time at 64 x 64 pixels.
    """

    def __init__(self, model: nn.Module) -> None:
        """The model must be on its device. Raises ValueError for a batch norm of another class."""
        # Latest statistics, running mean, running variance and momentum of each norm, looked up once.
        self.norms: list[tuple[Statistics, Tensor, Tensor, float]] = []
        for norm in _batch_norms(model):
            if not norm.is_frozen:
                assert norm.running_mean is not None and norm.running_var is not None
                norm.latest = Statistics(torch.zeros_like(norm.running_mean), torch.zeros_like(norm.running_var))
                self.norms.append((norm.latest, norm.running_mean, norm.running_var, norm.momentum or 0.0))

    @torch.no_grad()
    def follow(self, part: int = 0, parts: int = 1) -> None:
        """Update from the statistics of micro-batch `part` (from 0) of `parts`.

        After all parts each has the share momentum / parts, and the previous value 1 - momentum: the same as one update with
        the mean of their statistics, which is what ranks with one part each agree on.
        """
        pending = [entry for entry in self.norms if entry[0].factor and entry[3]]
        if not pending:
            return
        latest, means, variances, momenta = zip(*pending, strict=True)
        shares = [momentum / (parts - (parts - 1 - part) * momentum) for momentum in momenta]
        # Three multi-tensor kernels for all norms, instead of a few small ones per norm.
        torch._foreach_lerp_(means, [each.mean for each in latest], shares)
        biased = torch._foreach_mul([each.var for each in latest], [each.factor for each in latest])
        torch._foreach_lerp_(variances, biased, shares)
        self.forget()

    def forget(self) -> None:
        """Discard the statistics of the latest batch."""
        for latest, *_ in self.norms:
            latest.factor = 0.0


def synchronise(model: nn.Module, sync: NormSync, node: dist.Group | None) -> RunningStatistics:
    """Give the batch norms of `model` the statistics that `norm_sync` of a recipe names. Collective.

    Running statistics change only by `RunningStatistics.follow`. `node`: group of the ranks of this node. Raises ValueError for
    a batch norm of another class.
    """
    match sync:
        case 'frozen':
            freeze(model)
        case 'node' if dist.group_size(node) > 1:
            share_statistics(model, node)
        case 'global' if dist.world_size() > 1:
            # A separate communicator: small sums must not queue behind gradient buckets.
            share_statistics(model, dist.new_group())
    return RunningStatistics(model)


def freeze(model: nn.Module) -> None:
    """Make every batch norm of `model` normalise as in evaluation, in training too. Raises ValueError as `share_statistics`
    does.
    """
    for norm in _batch_norms(model):
        norm.is_frozen = True


def mark_folded(model: nn.Module) -> int:
    """Mark batch norms that are folded in the checkpoint that `model` was filled from; return the number of new ones.

    They have exactly the statistics of `BatchNorm2d.folded`, which no training produces. Their scale and offset are trained
    like others; with batch statistics the network would lose what it has learned. Call it after loading the weights: it reads
    them from the device.
    """
    new = 0
    for norm in _batch_norms(model):
        expected, was_folded = norm.folded(), norm.is_folded
        norm.is_folded = all(torch.equal(getattr(norm, name).cpu(), expected[name]) for name in ('running_mean', 'running_var'))
        new += norm.is_folded and not was_folded
    return new


def norms_can_follow(model: nn.Module) -> bool:
    """True if `norm_sync: frozen` matters: a batch norm is neither folded nor, with its scale, in a frozen part of `model`."""
    return any(not norm.is_folded and norm.weight.requires_grad for norm in _batch_norms(model))


def share_statistics(model: nn.Module, group: dist.Group | None) -> None:
    """Make every batch norm of `model` use the statistics of all ranks of `group`.

    Raises ValueError for a batch norm of another class: it would silently stay local.
    """
    for norm in _batch_norms(model):
        norm.group = group


def convert_batch_norms(model: nn.Module) -> nn.Module:
    """Replace each `nn.BatchNorm2d` of a foreign `model` by one of this module; keep parameters and statistics."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.BatchNorm2d:
            own = BatchNorm2d(module.num_features, eps=module.eps, momentum=module.momentum, affine=module.affine)
            own.load_state_dict(module.state_dict())
            model.set_submodule(name, own)
    return model


def _batch_norms(model: nn.Module) -> list[BatchNorm2d]:
    """Return the batch norms of `model`. Raises ValueError for one of another class."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, BatchNorm2d):
            kind = type(module).__name__
            raise ValueError(
                f'{name} is a {kind}, which cannot be shared or frozen; use norms.BatchNorm2d or norms.convert_batch_norms'
            )
    return [module for module in model.modules() if isinstance(module, BatchNorm2d)]


class _SharedOnCuda(torch.autograd.Function):
    """x [B, C, H, W] normalised over the ranks of a group, and the mean and biased variance [C], which are not differentiable.

    Uses the kernels of `torch.nn.SyncBatchNorm`. That module itself reads the counts on the host in every forward pass, which
    waits for the device, and tracks the unbiased variance.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, group: dist.Group
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = x.contiguous(memory_format=_layout(x))
        # Local statistics; ranks may hold different numbers of samples, so counts travel along.
        own_mean, own_inverse = torch.batch_norm_stats(x, eps)
        own = torch.cat([own_mean, own_inverse, own_mean.new_full((1,), x.numel() // x.shape[1])])
        of_ranks = dist.gather(own, group)  # [R, 2 C + 1]
        means, inverses = of_ranks[:, :-1].chunk(2, dim=1)
        counts = of_ranks[:, -1].contiguous()
        # Combined by torch's kernel, weighted by count. It wants counts of the type of the running statistics (without them, of
        # `x`, and bfloat16 cannot count); with momentum 0 the two given here, no longer needed, keep their values.
        mean, inverse = torch.batch_norm_gather_stats_with_counts(x, means, inverses, own_mean, own_inverse, 0.0, eps, counts)
        ctx.save_for_backward(x, weight, mean, inverse, counts.int())
        ctx.group = group
        var = inverse.pow(-2).sub_(eps)
        ctx.mark_non_differentiable(mean, var)
        return torch.batch_norm_elemt(x, weight, bias, mean, inverse, eps), mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse, counts = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=_layout(x))
        # Local sums over the gradient, with torch's kernels, then the sums over ranks.
        sum_grad, sum_grad_x, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
            grad, x, mean, inverse, weight, True, True, True
        )
        sums = dist.sum_over_ranks(torch.cat([sum_grad, sum_grad_x]), ctx.group)
        sum_grad, sum_grad_x = sums.chunk(2)
        grad_x = torch.batch_norm_backward_elemt(grad, x, mean, inverse, weight, sum_grad, sum_grad_x, counts)
        return grad_x, grad_weight, grad_bias, None, None


def _with_gradient_like(x: Tensor, normalised: Tensor) -> Tensor:
    """Give the gradient of `normalised` the layout of `x`.

    torch's CPU kernel misreads that of a single image behind a transposition, as attention has (torch 2.14).
    """
    if normalised.requires_grad and len(x) == 1 and not x.is_cuda:
        layout = _layout(x)
        normalised.register_hook(lambda grad: grad.contiguous(memory_format=layout))  # type: ignore[no-untyped-call]
    return normalised


class _SharedOnCpu(torch.autograd.Function):
    """Counterpart of `_SharedOnCuda` for CPUs.

    Ranks exchange, as float64, the sum, the sum of squares and the count of each channel. The moments of each sample are exact
    to a bit or two and independent of the rest of the batch; added up in float64 and rounded once, they give the same mean and
    variance to the bit for nearly every number of ranks. That matters: a difference in the last bit switches some ReLU, and the
    gradient differs a thousand times more.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, group: dist.Group
    ) -> tuple[Tensor, Tensor, Tensor]:
        means, variances = _moments_of_samples(x)  # [B, C]
        means = means.double()
        squares = means.square() + variances
        # Per channel and rank: sum, sum of squares and count.
        own = torch.cat([means.sum(0), squares.sum(0), means.new_full((1,), len(x))]).mul_(x.shape[2] * x.shape[3])
        sums = dist.sum_over_ranks(own, group)
        count = sums[-1:]
        # Mean and biased variance over all ranks, E[x^2] - E[x]^2.
        mean, squares = (sums[:-1] / count).chunk(2)
        var = torch.addcmul(squares, mean, mean, value=-1).clamp_(min=0)  # safe in float64
        mean, var = mean.to(_statistics(x)), var.to(_statistics(x))
        ctx.save_for_backward(x, weight, mean, var, count)
        ctx.eps, ctx.group = eps, group
        ctx.mark_non_differentiable(mean, var)
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps), mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Use the kernel of evaluation mode, which treats mean and variance as constants, and add the gradient through these
        two.

        With n values per channel over all ranks, z = (x - mean) / std and sums over all of them, that is - weight / (std n)
        (sum g + z sum g z): a multiple of x and a constant per channel, so one more pass of the norm's kernel.
        """
        x, weight, mean, var, count = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=_layout(x))
        # Local part, as if mean and variance were constants.
        inverse = (var + ctx.eps).rsqrt()
        grad_x, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, mean, var, mean, inverse, False, ctx.eps, [True, True, True]
        )
        # Part through mean and variance, from sums over all ranks: a slope and an offset per channel, applied by the norm's
        # kernel.
        sums = dist.sum_over_ranks(torch.cat([grad_bias, grad_weight]).double(), ctx.group)
        of_offset, of_slope = (-weight * inverse * sums.view(2, -1) / count).unbind()
        slope = of_slope * inverse
        offset, slope = (of_offset - slope * mean).to(_statistics(x)), slope.to(_statistics(x))
        # Not F.batch_norm, which refuses eps = 0 in torch 2.11: the variance is 1 here.
        ones = torch.ones_like(slope)
        rest = torch.batch_norm(x, slope, offset, torch.zeros_like(slope), ones, False, 0.0, 0.0, torch.backends.cudnn.enabled)
        return grad_x.add_(rest), grad_weight, grad_bias, None, None


def _moments_of_samples(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of each map of `x`, [B, C] each, by the kernel of torch's own batch norm."""
    B, C, H, W = x.shape
    if x.is_contiguous():
        mean, var = _moments(x.view(1, B * C, H, W))
        return mean.view(B, C), var.view(B, C)
    each = [_moments(sample) for sample in torch.split(x, 1)]  # channels last
    return torch.stack([mean for mean, _ in each]), torch.stack([var for _, var in each])


def _moments(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance [C] of `maps` [1, C, H, W]."""
    mean = var = None
    if maps.dtype != _statistics(maps):  # half precision: the kernel needs float32 running statistics to update
        mean, var = maps.new_zeros(2, maps.shape[1], dtype=_statistics(maps))
    moments: tuple[Tensor, Tensor] = torch.batch_norm_update_stats(maps, mean, var, 0.0)
    return moments


def _statistics(x: Tensor) -> torch.dtype:
    """Return the type of the statistics of a map: half-precision maps have float32 ones."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _layout(x: Tensor) -> torch.memory_format:
    """Return the memory format of a map."""
    is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if is_last else torch.contiguous_format
