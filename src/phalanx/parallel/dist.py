"""Who we are, and sums over ranks. Besides `launch`, this, `arrival` and `gradients` alone talk to torch.distributed."""

import os
import time
from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as torch_dist
import torch.distributed.nn  # takes the group of all ranks as a default when it is loaded: not after `join`, see `leave`
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from phalanx.parallel.arrival import open_store
from phalanx.system.cores import count_cores

Group = torch_dist.ProcessGroup
HANG_TIMEOUT = 'PHALANX_HANG_TIMEOUT'  # the environment variable in which a launcher says how long ranks may stand still
MESSAGE = 2**23  # numbers that are sent at once: 32 MiB of float32
SMALL = 2**20  # bytes from all ranks together that each rank fetches at once instead of summing them around a ring


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


def restart_count() -> int:
    """How many attempts of this launch came before this one."""
    return int(os.environ.get('TORCHELASTIC_RESTART_COUNT', 0))


def collective_timeout() -> float:
    """Seconds that ranks wait for each other: longer than a launcher that watches them, since it knows who is behind.

    Never less than ten minutes: with one that goes on, if slowly, the launcher is content, and the others have to be.
    """
    return max(600, float(os.environ.get(HANG_TIMEOUT, 0)) + 60)


def group_size(group: Group | None) -> int:
    return torch_dist.get_world_size(group) if torch_dist.is_initialized() else 1


def join(device: torch.device) -> None:
    """Joins the process group that the launcher's environment describes; does nothing when started alone.

    Raises RunError when the others do not come.
    """
    if not is_launched() or torch_dist.is_initialized():
        return
    own_rank, ranks = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    backend = 'cpu:gloo,cuda:nccl' if device.type == 'cuda' else 'gloo'
    torch_dist.init_process_group(
        backend,
        store=open_store(own_rank, ranks, collective_timeout()),
        rank=own_rank,
        world_size=ranks,
        timeout=timedelta(seconds=collective_timeout()),
        device_id=device if device.type == 'cuda' else None,
    )


def leave(failed: bool = False) -> None:
    """Leaves the process group, whose threads end with it.

    Unless something still holds the group: a thread that is awake when the interpreter ends can abort the process.

    A rank that failed must not do so with NCCL, where all ranks leave together: it would wait for those that wait for it, and
    never tell what ended it. The end of the process does it then.
    """
    if torch_dist.is_initialized() and not (failed and 'nccl' in torch_dist.get_backend_config()):
        torch_dist.destroy_process_group()


def new_group(ranks: Iterable[int] | None = None) -> Group | None:
    """A group of these ranks, or of all; None on a rank that is not in it. All ranks call this together."""
    group = torch_dist.new_group(None if ranks is None else list(ranks), timeout=timedelta(seconds=collective_timeout()))
    return group if isinstance(group, Group) else None


def node_group() -> Group | None:
    """The ranks of this node. Called by all ranks; nodes hold consecutive ranks, not all of them equally many."""
    if not torch_dist.is_initialized():
        return None
    first_of_node = gather_objects(rank() - int(os.environ.get('LOCAL_RANK', rank())))
    firsts = sorted(set(first_of_node))
    groups = [
        new_group(rank for rank, own in enumerate(first_of_node) if own == first) for first in firsts
    ]  # made by all ranks
    return groups[firsts.index(first_of_node[rank()])]


def barrier() -> None:
    if torch_dist.is_initialized():
        torch_dist.barrier()


def sum_over_ranks(value: Tensor, group: Group | None = None) -> Tensor:
    """`value` added up over the ranks of `group` (None: all), the same bits on each; no gradient flows through it."""
    if group_size(group) == 1:
        return value
    if _is_small(value, group):
        return _of_ranks(value, group).sum(0, dtype=value.dtype)
    value = value.clone(memory_format=torch.contiguous_format)
    torch_dist.all_reduce(value, group=group)
    return value


def largest_over_ranks(value: Tensor) -> Tensor:
    """The largest of each element of `value` on any rank."""
    if world_size() == 1:
        return value
    if _is_small(value):
        return _of_ranks(value).amax(0)
    value = value.clone()
    torch_dist.all_reduce(value, torch_dist.ReduceOp.MAX)
    return value


def _is_small(value: Tensor, group: Group | None = None) -> bool:
    """Whether latency is what an exchange of `value` costs, on CPUs: NCCL sees to that itself.

    Compiled code takes torch's all-reduce, which it can put into its graph; nothing there can wait for another rank.
    """
    if torch.compiler.is_compiling() or value.device.type != 'cpu':
        return False
    return value.nbytes * group_size(group) <= SMALL


def _of_ranks(value: Tensor, group: Group | None = None) -> Tensor:
    """`value` of each rank, in order of rank, as [ranks, *value.shape].

    Each rank sends to each other at once. Gloo's all-reduce takes 2 (ranks - 1) turns, one after the other, and announces each
    of its messages: for the few numbers of a batch norm that is three times as long. What is left is mostly the time in which
    a sleeping thread is woken, so this one stays awake for a while; it leaves its core to whoever else can use it.
    """
    ranks = group_size(group)
    own = value.expand(ranks, *value.shape).contiguous()
    of_ranks = torch.empty_like(own)
    exchange = torch_dist.all_to_all_single(of_ranks, own, group=group, async_op=True)
    assert exchange is not None
    asleep = time.perf_counter() + _awake()
    while not exchange.is_completed() and time.perf_counter() < asleep:
        os.sched_yield()
    exchange.wait()
    return of_ranks


@cache
def _awake() -> float:
    """Seconds that a rank waits for the others without going to sleep: where it does not keep one of them from its core."""
    return 0.02 if int(os.environ.get('LOCAL_WORLD_SIZE', 1)) <= count_cores() else 0.0


def gather(value: Tensor, group: Group) -> Tensor:
    """`value` [N] of each rank of `group`, in order of rank, as [ranks, N]."""
    whole = value.new_empty(group_size(group), len(value))
    if torch_dist.get_backend(group) == 'gloo':  # which cannot fill one tensor on a GPU
        torch_dist.all_gather(list(whole.unbind()), value, group=group)
    else:
        torch_dist.all_gather_into_tensor(whole, value, group=group)
    return whole


def average_over_ranks(tensors: list[Tensor]) -> None:
    """Replaces each tensor by its mean over ranks."""
    for tensor in tensors if world_size() > 1 else []:
        torch_dist.all_reduce(tensor)
        tensor /= world_size()


@torch.no_grad()
def average_flat_over_ranks(tensors: list[Tensor]) -> None:
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


def gather_rows_to_main(rows: Tensor) -> Tensor:
    """`rows` [n, ...] of every rank on the main one, in order of rank, [sum of n, ...]; on the others what they passed in.

    In host memory. They arrive in their final place, in messages of bounded size; `n` may differ between ranks.
    """
    own = rows.detach().cpu().contiguous()
    if world_size() == 1:
        return own
    counts = gather_objects(len(own))
    at_once = max(1, MESSAGE // max(1, own[:1].numel()))
    if rank() != 0:
        for message in torch.split(own, at_once) if len(own) else ():
            torch_dist.send(message, dst=0)
        return own
    whole = own.new_empty(sum(counts), *own.shape[1:])
    whole[: len(own)] = own
    for sender, part in enumerate(torch.split(whole, counts)):
        for message in torch.split(part, at_once) if sender and len(part) else ():
            torch_dist.recv(message, src=sender)
    return whole


def gather_objects_to_main(value: Any) -> list[Any]:
    """`value` of every rank, in order of rank, on the main one; on the others what they passed in. Pickled: no large arrays."""
    if world_size() == 1:
        return [value]
    gathered: list[Any] | None = [None] * world_size() if rank() == 0 else None
    torch_dist.gather_object(value, gathered)
    return gathered or [value]


def gather_objects(value: Any) -> list[Any]:
    """`value` of every rank, in order of rank. Small things only: they travel pickled between our own processes."""
    if world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * world_size()
    torch_dist.all_gather_object(gathered, value)
    return gathered


def broadcast_object(value: Any) -> Any:
    """What rank 0 passed in, on every rank."""
    if world_size() == 1:
        return value
    held = [value]
    torch_dist.broadcast_object_list(held, src=0)
    return held[0]


def broadcast_with_tensors(value: Any) -> Any:
    """As `broadcast_object`, for things that hold many tensors: those travel one by one, as they are, to host memory."""
    if world_size() == 1:
        return value
    leaves, tree = tree_flatten(value) if rank() == 0 else ([], None)
    forms = [(leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    forms, tree = broadcast_object((forms, tree))
    found = []
    for number, form in enumerate(forms):
        if isinstance(form, tuple) and len(form) == 2 and isinstance(form[1], torch.dtype):
            own = leaves[number].contiguous() if rank() == 0 else torch.empty(form[0], dtype=form[1])
            torch_dist.broadcast(own, src=0)
            form = own
        found.append(form)
    return tree_unflatten(found, tree)
