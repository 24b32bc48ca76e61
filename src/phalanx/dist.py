"""The one module, besides `launch`, that talks to torch.distributed: who we are, and sums over ranks."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor

Group = torch_dist.ProcessGroup


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


def leave() -> None:
    """Leaves the process group."""
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
    return mine


def barrier() -> None:
    if torch_dist.is_initialized():
        torch_dist.barrier()


class _SumOverRanks(torch.autograd.Function):
    """y = sum over ranks of x. Each rank's loss depends on every x through y, so the gradient of x is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group | None) -> Tensor:
        ctx.group = group
        value = value.clone(memory_format=torch.contiguous_format)
        torch_dist.all_reduce(value, group=group)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        torch_dist.all_reduce(grad, group=ctx.group)
        return grad, None


def sum_over_ranks(value: Tensor, group: Group | None = None) -> Tensor:
    """`value` added up over ranks; differentiable."""
    if group_size(group) == 1:
        return value
    return _SumOverRanks.apply(value, group)  # type: ignore[no-any-return]


def average_over_ranks(tensors: list[Tensor]) -> None:
    """Replaces each tensor by its mean over ranks."""
    for tensor in tensors if world_size() > 1 else []:
        torch_dist.all_reduce(tensor)
        tensor /= world_size()


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
