"""Averaging of gradients over ranks by torch's DDP, which overlaps it with the backward pass, and its compression hooks."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from phalanx.parallel.dist import HOOKS, gather_rows_to_main, new_group, rank, world_size

# Running statistics are already equal on all ranks, so DDP need not broadcast buffers. torch renamed the option after 2.11.
RENAMED = 'forward_sync_buffers' in inspect.signature(DistributedDataParallel).parameters
NO_BUFFERS: dict[str, Any] = {'forward_sync_buffers' if RENAMED else 'broadcast_buffers': False}

BUCKETS = 8  # per step: only the last bucket is still to be sent when the backward pass ends
BUCKET_MB = 1.0, 25.0  # minimum and maximum: DDP's own sizes for the first and for later buckets


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    compression: Literal['none', 'bf16', 'fp16', 'power_sgd'] = 'none'
    """Gradient compression. bf16 and fp16 halve the traffic; power_sgd sends low-rank factors and adds the residual to the next
    step (PowerSGD, Vogels et al. 2019). Checkpoints then hold each rank's residual, as large as its gradients."""
    bucket_mb: float | None = None
    """DDP bucket size in MiB; null: an eighth of all gradients, between 1 and 25. On CPUs power_sgd uses a single bucket."""
    rank: int = 2
    """power_sgd: rank of the approximation."""
    plain_steps: int = 10
    """power_sgd: uncompressed steps after a start."""

    def __post_init__(self) -> None:
        if self.bucket_mb is not None and self.bucket_mb <= 0:
            raise ValueError(f'bucket_mb must be above 0, got {self.bucket_mb}')
        if self.rank < 1 or self.plain_steps < 1:
            raise ValueError(f'rank and plain_steps must be at least 1, got {self.rank} and {self.plain_steps}')

    def bucket(self, module: nn.Module) -> float:
        """Return the DDP bucket size for the gradients of `module`, in MiB."""
        least, most = BUCKET_MB
        return self.bucket_mb or min(max(gradients_mb(module) / BUCKETS, least), most)


def wrap_ddp(module: nn.Module, options: GradientOptions) -> tuple[nn.Module, PowerSgd | None]:
    """Wrap `module` in DDP; return it and the PowerSGD state, if any. With one rank, return `module` itself."""
    if world_size() == 1:
        return module, None
    # A kernel with one channel has two equivalent stride layouts; torch warns about them at length, and nothing can be done.
    warnings.filterwarnings('ignore', 'Grad strides do not match bucket view strides')
    device, bucket_mb, memory = next(module.parameters()).device, options.bucket(module), None
    if options.compression == 'power_sgd':
        memory = PowerSgd(options, device)
        # PowerSGD runs several collectives per bucket, and gloo's threads start each when the previous one is done. With two
        # buckets their order would differ between ranks, and gloo matches collectives by order. So use a single bucket.
        bucket_mb = bucket_mb if device.type == 'cuda' else 2 * gradients_mb(module) + 1
    # Buckets as views of the gradients save a copy of them.
    replica = DistributedDataParallel(module, gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb, **NO_BUFFERS)
    match options.compression:
        case 'bf16':
            # Wrapped in a lambda: without NCCL, DDP rejects torch's hook by its name, although gloo supports it.
            replica.register_comm_hook(replica.process_group, lambda group, bucket: bf16_compress_hook(group, bucket))
        case 'fp16':
            replica.register_comm_hook(replica.process_group, fp16_compress_hook)
    if memory is not None:
        replica.register_comm_hook(memory.of_torch, memory.hook)
    return replica, memory


def gradients_mb(module: nn.Module) -> float:
    """Return the size of the gradients that each rank sends per step, in MiB."""
    trainable = (parameter for parameter in module.parameters() if parameter.requires_grad)
    return sum(parameter.numel() * parameter.element_size() for parameter in trainable) / 2**20


class PowerSgd:
    """PowerSGD state: per bucket, the two low-rank factors and this rank's residual."""

    def __init__(self, options: GradientOptions, device: torch.device) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd  # takes 0.3 s to import

        self.columns, self.device, self.hook = options.rank, device, power_sgd.powerSGD_hook
        # A group of its own: batch norms use the other at the same time.
        group = new_group(use=HOOKS) if world_size() > 1 else None
        self.of_torch = power_sgd.PowerSGDState(group, options.rank, options.plain_steps + 1)  # torch requires at least 2
        self.of_torch.iter = 1

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Context in which gradients are sent uncompressed and the state does not change."""
        steps, self.of_torch.iter = self.of_torch.iter, 0
        try:
            yield
        finally:
            self.of_torch.iter = steps

    def state(self) -> dict[str, Any]:
        """State for resuming, on the main rank. Collective."""
        # Torch's state has the low-rank factors, equal on all ranks, and the residual, which differs.
        return {
            'steps': self.of_torch.iter,
            'columns': self.columns,
            'p': self.of_torch.p_memory_dict,  # the same on all ranks
            'q': self.of_torch.q_memory_dict,
            'unsent': {bucket: gather_rows_to_main(error[None]) for bucket, error in sorted(self.of_torch.error_dict.items())},
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """Continue from `state`; start over without one or if `rank` differs.

        Only the mean residual over ranks affects their common gradient, so another number of ranks continues from that mean and
        loses nothing.
        """
        if state is None or state['columns'] != self.columns:
            return
        self.of_torch.iter = state['steps']
        for bucket, unsent in state['unsent'].items():  # [ranks, elements]
            own = unsent[rank()] if len(unsent) == world_size() else unsent.mean(0)
            self.of_torch.error_dict[bucket] = own.to(self.device, copy=True)
            self.of_torch.p_memory_dict[bucket] = state['p'][bucket].to(self.device, copy=True)
            self.of_torch.q_memory_dict[bucket] = state['q'][bucket].to(self.device, copy=True)
