"""The mean of gradients over ranks: torch's DDP, which sends them during the backward pass, and its compression hooks."""

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

from phalanx.parallel.dist import gather_rows_to_main, new_group, rank, world_size

# Running statistics are equal on all ranks already. The option that says so was renamed after torch 2.11.
RENAMED = 'forward_sync_buffers' in inspect.signature(DistributedDataParallel).parameters
NO_BUFFERS: dict[str, Any] = {'forward_sync_buffers' if RENAMED else 'broadcast_buffers': False}

BUCKETS = 8  # that all gradients make: what is still to be sent after the backward pass is one of them
BUCKET_MB = 1.0, 25.0  # of each, at least and at most: DDP's own for the first and for the others


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    compression: Literal['none', 'bf16', 'fp16', 'power_sgd'] = 'none'
    """Gradient compression. bf16 and fp16 halve the traffic; power_sgd sends a matrix as the product of two thin ones and adds
    what is lost to the next step's (Vogels et al. 2019). A checkpoint keeps that of each rank, as large as its gradients."""
    bucket_mb: float | None = None
    """MiB of gradients that are sent at once, as soon as they are ready; null: an eighth of all, 1 to 25. On CPUs power_sgd
    sends all at once."""
    rank: int = 2
    """power_sgd: columns of the thin matrices."""
    plain_steps: int = 10
    """power_sgd: steps after a start that send gradients as they are."""

    def __post_init__(self) -> None:
        if self.bucket_mb is not None and self.bucket_mb <= 0:
            raise ValueError(f'bucket_mb must be above 0, got {self.bucket_mb}')
        if self.rank < 1 or self.plain_steps < 1:
            raise ValueError(f'rank and plain_steps must be at least 1, got {self.rank} and {self.plain_steps}')

    def bucket(self, module: nn.Module) -> float:
        """MiB of the gradients of `module` that are sent at once."""
        least, most = BUCKET_MB
        return self.bucket_mb or min(max(gradients_mb(module) / BUCKETS, least), most)


def wrap_ddp(module: nn.Module, options: GradientOptions) -> tuple[nn.Module, PowerSgd | None]:
    """`module` under DDP, with the mean of its gradients over ranks as its gradients, and what compression remembers of them.

    With one rank it is `module` itself.
    """
    if world_size() == 1:
        return module, None
    # The strides of a window of one channel can be written in two ways, of which torch warns at length; nothing can be done.
    warnings.filterwarnings('ignore', 'Grad strides do not match bucket view strides')
    device, bucket_mb, memory = next(module.parameters()).device, options.bucket(module), None
    if options.compression == 'power_sgd':
        memory = PowerSgd(options, device)
        # The exchanges of a bucket follow one another, each begun by a thread of gloo when the one before is done. With two
        # buckets their order would differ between ranks, and gloo pairs exchanges by order.
        bucket_mb = bucket_mb if device.type == 'cuda' else 2 * gradients_mb(module) + 1
    replica = DistributedDataParallel(module, gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb, **NO_BUFFERS)
    match options.compression:
        case 'bf16':
            # By a function of our own: DDP refuses torch's by its name where there is no NCCL, although gloo can do it.
            replica.register_comm_hook(replica.process_group, lambda group, bucket: bf16_compress_hook(group, bucket))
        case 'fp16':
            replica.register_comm_hook(replica.process_group, fp16_compress_hook)
    if memory is not None:
        replica.register_comm_hook(memory.of_torch, memory.hook)
    return replica, memory


def gradients_mb(module: nn.Module) -> float:
    """MiB that each rank sends of its gradients in a step."""
    wanted = (parameter for parameter in module.parameters() if parameter.requires_grad)
    return sum(parameter.numel() * parameter.element_size() for parameter in wanted) / 2**20


class PowerSgd:
    """What PowerSGD remembers from step to step: by bucket, the two thin matrices and what this rank has not yet sent."""

    def __init__(self, options: GradientOptions, device: torch.device) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd  # a third of a second

        self.columns, self.device, self.hook = options.rank, device, power_sgd.powerSGD_hook
        group = new_group() if world_size() > 1 else None  # norms exchange sums at the same time
        self.of_torch = power_sgd.PowerSGDState(group, options.rank, options.plain_steps + 1)  # at least 2, says torch
        self.of_torch.iter = 1

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Within this context gradients travel as they are, and nothing is remembered of them."""
        steps, self.of_torch.iter = self.of_torch.iter, 0
        yield
        self.of_torch.iter = steps

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, on the main rank; all ranks take part."""
        return {
            'steps': self.of_torch.iter,
            'columns': self.columns,
            'p': self.of_torch.p_memory_dict,  # the same on all ranks
            'q': self.of_torch.q_memory_dict,
            'unsent': {bucket: gather_rows_to_main(error[None]) for bucket, error in sorted(self.of_torch.error_dict.items())},
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """Goes on from `state`; afresh without one, or with another number of columns.

        Only the mean over ranks of what was not sent has an effect on their common gradient. So another number of ranks takes
        that, and nothing is lost.
        """
        if state is None or state['columns'] != self.columns:
            return
        self.of_torch.iter = state['steps']
        for bucket, unsent in state['unsent'].items():  # [ranks, elements]
            own = unsent[rank()] if len(unsent) == world_size() else unsent.mean(0)
            self.of_torch.error_dict[bucket] = own.to(self.device, copy=True)
            self.of_torch.p_memory_dict[bucket] = state['p'][bucket].to(self.device, copy=True)
            self.of_torch.q_memory_dict[bucket] = state['q'][bucket].to(self.device, copy=True)
