"""The one module, besides `launch`, that talks to torch.distributed: who we are, and sums over ranks."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.shared import SharedSums, share

Group = torch_dist.ProcessGroup
MESSAGE = 2**23  # numbers that are sent at once: 32 MiB of float32

# Running statistics are equal on all ranks already. The option that says so was renamed after torch 2.11.
RENAMED = 'forward_sync_buffers' in inspect.signature(DistributedDataParallel).parameters
NO_BUFFERS: dict[str, Any] = {'forward_sync_buffers' if RENAMED else 'broadcast_buffers': False}


def rank() -> int:
    """The number of this process among all, 0 .. world_size-1."""
    return torch_dist.get_rank() if torch_dist.is_initialized() else 0


def world_size() -> int:
    """The number of processes over all nodes."""
    return torch_dist.get_world_size() if torch_dist.is_initialized() else 1


def local_rank() -> int:
    """The number of this process among those of its node; it picks the device."""
    return int(os.environ.get('LOCAL_RANK', 0))


def is_launched() -> bool:
    """Whether a launcher (ours or torchrun) started this process as a rank."""
    return 'RANK' in os.environ and 'WORLD_SIZE' in os.environ


def rank_of_environment() -> int:
    """The rank that the launcher gave this process, also before it joined the others and after it left them."""
    return int(os.environ.get('RANK', 0))


def group_size(group: Group | None) -> int:
    return torch_dist.get_world_size(group) if torch_dist.is_initialized() else 1


def join(device: torch.device) -> None:
    """Joins the process group that the launcher's environment describes; does nothing when started alone."""
    if not is_launched() or torch_dist.is_initialized():
        return
    backend = 'cpu:gloo,cuda:nccl' if device.type == 'cuda' else 'gloo'
    torch_dist.init_process_group(
        backend,
        init_method=os.environ.get('PHALANX_INIT_METHOD', 'env://'),
        rank=int(os.environ['RANK']),
        world_size=int(os.environ['WORLD_SIZE']),
        timeout=timedelta(minutes=10),
        device_id=device if device.type == 'cuda' else None,
    )
    if os.environ.get('LOCAL_WORLD_SIZE') == os.environ['WORLD_SIZE']:
        _share_memory(None)


# For groups whose ranks are on one machine; they come and go with the process group.
_SHARED: dict[Group | None, SharedSums] = {}


def _share_memory(group: Group | None) -> None:
    """Lets small sums over the ranks of `group`, all on this machine, go through shared memory where that can be had."""

    def gather(value: Any) -> list[Any]:
        gathered: list[Any] = [None] * group_size(group)
        torch_dist.all_gather_object(gathered, value, group=group)
        return gathered

    if (sums := share(torch_dist.get_rank(group), gather)) is not None:
        _SHARED[group] = sums


def leave() -> None:
    """Leaves the process group."""
    while _SHARED:
        _SHARED.popitem()[1].leave()
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()


def node_group() -> Group | None:
    """The ranks of this node. Called by all ranks; nodes hold consecutive ranks."""
    if not torch_dist.is_initialized():
        return None
    size = int(os.environ.get('LOCAL_WORLD_SIZE', world_size()))
    mine = None
    for first in range(0, world_size(), size):  # every rank must take part in making every group
        group = torch_dist.new_group(list(range(first, min(first + size, world_size()))))
        if first <= rank() < first + size:
            mine = group if isinstance(group, Group) else None
    if mine is not None:
        _share_memory(mine)
    return mine


def barrier() -> None:
    if torch_dist.is_initialized():
        torch_dist.barrier()


class _SumOverRanks(torch.autograd.Function):
    """y = sum over ranks of x. Each rank's loss depends on every x through y, so the gradient of x is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group | None) -> Tensor:
        ctx.group = group
        return _sum(value, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _sum(grads[0], ctx.group), None


def _sum(value: Tensor, group: Group | None) -> Tensor:
    shared = _SHARED.get(group)
    if shared is not None and shared.fits(value):
        return shared.sum(value)
    value = value.clone(memory_format=torch.contiguous_format)
    torch_dist.all_reduce(value, group=group)
    return value


def sum_over_ranks(value: Tensor, group: Group | None = None) -> Tensor:
    """`value` added up over ranks; differentiable."""
    if group_size(group) == 1:
        return value
    return _SumOverRanks.apply(value, group)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    compression: Literal['none', 'bf16', 'fp16', 'power_sgd'] = 'none'
    """How gradients travel. Half precision is half as much; power_sgd sends a matrix as a product of two thin ones and adds
    what is lost to the next step's (Vogels et al. 2019). A checkpoint keeps that of each rank, as large as its gradients."""
    rank: int = 2
    """power_sgd: columns of the thin matrices."""
    plain_steps: int = 10
    """power_sgd: steps after a start that send gradients as they are."""
    local_steps: int = 1
    """Above 1: machines step alone and average what they have become after so many steps (local SGD). Their number then shows
    in the result; see docs/scale.md."""
    local_from: int = 0
    """The first step of the run that machines take alone; those before they take together (Lin et al. 2020)."""

    def __post_init__(self) -> None:
        if self.rank < 1 or self.plain_steps < 1:
            raise ValueError(f'rank and plain_steps must be at least 1, got {self.rank} and {self.plain_steps}')
        if self.local_steps < 1 or self.local_from < 0:
            raise ValueError(f'local_steps must be at least 1 and local_from 0, got {self.local_steps} and {self.local_from}')
        if self.local_steps > 1 and self.compression != 'none':
            raise ValueError(
                f'compression {self.compression} and local_steps {self.local_steps} do not go together: '
                'between machines that step alone no gradients travel; leave out one of them'
            )

    def is_local(self, step: int) -> bool:
        """Whether machines take this step alone."""
        return self.local_steps > 1 and step >= self.local_from

    def met_before(self, step: int) -> int:
        """How many steps were made, out of fewer than `step`, when the machines were last the same."""
        return max(min(step - 1, self.local_from), (step - 1) // self.local_steps * self.local_steps)

    def meets_after(self, steps: int) -> bool:
        """Whether the machines are the same when so many steps were made."""
        return self.met_before(steps + 1) == steps


def replicated(
    module: nn.Module, options: GradientOptions, ranks: Callable[[], Group | None] = lambda: None
) -> tuple[nn.Module, PowerSgd | None]:
    """`module` with the mean of its gradients over ranks as its gradients, and what compression remembers of them.

    With local steps it is the mean over the group that `ranks` gives. With one rank it is `module` itself.
    """
    if world_size() == 1:
        return module, None
    replica = DistributedDataParallel(module, gradient_as_bucket_view=True, **NO_BUFFERS)
    match options.compression:
        case 'none' if options.local_steps > 1:
            replica.register_comm_hook(None, lambda state, bucket: _average_among(ranks(), bucket))
        case 'none':
            pass
        case 'power_sgd':
            memory = PowerSgd(options, next(module.parameters()).device)
            replica.register_comm_hook(None, lambda state, bucket: memory.average(bucket))
            return replica, memory
        case half:
            dtype = {'bf16': torch.bfloat16, 'fp16': torch.float16}[half]
            replica.register_comm_hook(None, lambda state, bucket: _average_in(dtype, bucket))
    return replica, None


class PowerSgd:
    """What PowerSGD remembers from step to step: by bucket, the two thin matrices and what this rank has not yet sent."""

    def __init__(self, options: GradientOptions, device: torch.device) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd  # a third of a second

        self.columns, self.device, self.hook = options.rank, device, power_sgd.powerSGD_hook
        self.of_torch = power_sgd.PowerSGDState(None, options.rank, options.plain_steps + 1)  # at least 2, says torch
        self.of_torch.iter = 1

    def average(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """The mean over ranks of a bucket of DDP's gradients.

        It takes three exchanges, and gloo's threads would begin the later ones of a bucket before or after those of the next,
        each rank as it comes. So there it is waited for; NCCL keeps the order in which they were asked for.
        """
        done: torch.futures.Future[Tensor] = self.hook(self.of_torch, bucket)
        if self.device.type == 'cpu':
            done.wait()
        return done

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
            'unsent': {bucket: on_main_rank(error) for bucket, error in sorted(self.of_torch.error_dict.items())},
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


def _average_in(dtype: torch.dtype, bucket: Any) -> torch.futures.Future[Tensor]:
    """The mean over ranks of a bucket of DDP's gradients, sent as `dtype`. (torch's own hook refuses bf16 without NCCL.)"""
    sent = bucket.buffer().to(dtype).div_(world_size())  # first, so that the sum is in range
    done = torch_dist.all_reduce(sent, async_op=True).get_future()
    return done.then(lambda whole: bucket.buffer().copy_(whole.value()[0]))


def _average_among(group: Group | None, bucket: Any) -> torch.futures.Future[Tensor]:
    """The mean over the ranks of `group` of a bucket of DDP's gradients."""
    sent = bucket.buffer().div_(group_size(group))
    done = torch_dist.all_reduce(sent, group=group, async_op=True).get_future()
    return done.then(lambda whole: whole.value()[0])


def average_over_ranks(tensors: list[Tensor]) -> None:
    """Replaces each tensor by its mean over ranks."""
    for tensor in tensors if world_size() > 1 else []:
        torch_dist.all_reduce(tensor)
        tensor /= world_size()


@torch.no_grad()
def average_many_over_ranks(tensors: list[Tensor]) -> None:
    """Replaces each tensor by its mean over ranks; many small ones travel as one message."""
    for message in _messages(tensors):
        packed = torch.cat([tensor.flatten() for tensor in message])
        average_over_ranks([packed])
        for tensor, mean in zip(message, torch.split(packed, [tensor.numel() for tensor in message]), strict=True):
            tensor.copy_(mean.view(tensor.shape))


def _messages(tensors: list[Tensor]) -> list[list[Tensor]]:
    """The tensors, those of one kind together as long as they are no more than MESSAGE numbers."""
    kinds: dict[tuple[torch.device, torch.dtype], list[list[Tensor]]] = {}
    for tensor in tensors:
        messages = kinds.setdefault((tensor.device, tensor.dtype), [[]])
        if messages[-1] and sum(map(torch.numel, messages[-1])) + tensor.numel() > MESSAGE:
            messages.append([])
        messages[-1].append(tensor)
    return [message for messages in kinds.values() for message in messages]


def on_main_rank(tensor: Tensor) -> Tensor:
    """`tensor` [...] of every rank as [ranks, ...], in host memory; on other ranks than the main one its own as [1, ...]."""
    own = tensor.detach().cpu()
    if world_size() == 1:
        return own[None]
    gathered = [torch.empty_like(own) for _ in range(world_size())] if rank() == 0 else None
    torch_dist.gather(own, gathered)
    return torch.stack(gathered or [own])


def gather_objects(value: Any) -> list[Any]:
    """`value` of every rank, in order of rank. Small things only: they travel pickled between our own processes."""
    if world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * world_size()
    torch_dist.all_gather_object(gathered, value)
    return gathered


def from_main_rank(value: Any) -> Any:
    """What rank 0 passed in, on every rank."""
    if world_size() == 1:
        return value
    held = [value]
    torch_dist.broadcast_object_list(held, src=0)
    return held[0]
