"""Rank info and collectives. Besides `launch`, only the modules beside this one use torch.distributed."""

import os
import platform
import sys
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as torch_dist
import torch.distributed.nn  # holds the default group if imported after `join`, see `leave`; so import it before
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from phalanx.parallel.arrival import open_store
from phalanx.parallel.flight_recorder import record_collectives
from phalanx.system.errors import RequestError

Group = torch_dist.ProcessGroup
HANG_TIMEOUT = 'PHALANX_HANG_TIMEOUT'  # environment variable: seconds without progress that the launcher tolerates
MESSAGE = 2**23  # elements per message: 32 MiB of float32
MESH = 32  # members of a group up to which each is connected to each
SMALL = 2**20  # bytes from all ranks together up to which each rank receives all values instead of a ring all-reduce
HOOKS = 'hooks of gradients'  # description of a group whose collectives are continued by Python functions in threads of gloo
PATIENCE = 1000  # milliseconds that `leave` waits for these threads


def rank() -> int:
    """Global rank of this process, 0 .. world_size - 1."""
    return torch_dist.get_rank() if torch_dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes over all nodes."""
    return torch_dist.get_world_size() if torch_dist.is_initialized() else 1


def is_initialized() -> bool:
    """True if this process is in a process group."""
    return torch_dist.is_initialized()


def local_rank() -> int:
    """Rank of this process within its node; selects the device.

    Unknown in a process group of somebody else, it is the device that the process has chosen.
    """
    known = _known_local_rank()
    if known is None and torch_dist.is_initialized() and torch.cuda.is_available():
        return torch.cuda.current_device()
    return known or 0


def _known_local_rank() -> int | None:
    """LOCAL_RANK, unless the environment is not that of this rank: accelerate's debug_launcher names rank 0 in each process."""
    is_own = not torch_dist.is_initialized() or os.environ.get('RANK', str(rank())) == str(rank())
    return int(os.environ['LOCAL_RANK']) if is_own and 'LOCAL_RANK' in os.environ else None


def is_launched() -> bool:
    """True if a launcher (ours or torchrun) started this process as a rank, or it is in a process group already."""
    return torch_dist.is_initialized() or ('RANK' in os.environ and 'WORLD_SIZE' in os.environ)


def rank_of_environment() -> int:
    """Rank that the launcher assigned, also before joining the others and after leaving them."""
    return int(os.environ.get('RANK', 0))


def restart_count() -> int:
    """Number of earlier attempts of this launch."""
    return int(os.environ.get('TORCHELASTIC_RESTART_COUNT', 0))


def arrival_timeout() -> float:
    """Seconds that ranks wait for each other at the start: longer than a launcher that watches them tolerates.

    At least ten minutes: the launcher tolerates a slow rank, so the others must too.
    """
    return max(600, float(os.environ.get(HANG_TIMEOUT, 0)) + 60)


def collective_timeout() -> float:
    """Seconds that ranks wait for each other in a collective.

    A launcher that watches them ends a hang, and names the rank that hangs. A day then: while a job is suspended, as by
    `scontrol suspend`, the clock of the collective that it is in goes on.
    """
    return arrival_timeout() + (24 * 3600 if HANG_TIMEOUT in os.environ else 0)


def group_size(group: Group | None) -> int:
    """Number of ranks in `group`."""
    return torch_dist.get_world_size(group) if torch_dist.is_initialized() else 1


def join(device: torch.device) -> bool:
    """Join the process group that the launcher's environment describes; do nothing if started alone, or in a group already.

    Return True if this call has made the group, so that it is ours to leave. Raises RunError if the others do not arrive, and
    RequestError if the group that exists cannot exchange tensors of the CPU or of `device`.
    """
    if torch_dist.is_initialized():
        _check_backends(device)
    if not is_launched() or torch_dist.is_initialized():
        return False
    record_collectives()
    own_rank, ranks = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    connect_when_needed(ranks)
    # NCCL for tensors on the device, gloo for those on the host, which then do not wait for queued kernels.
    backend = 'cpu:gloo,cuda:nccl' if device.type == 'cuda' else 'gloo'
    torch_dist.init_process_group(
        backend,
        store=open_store(own_rank, ranks, arrival_timeout()),
        rank=own_rank,
        world_size=ranks,
        timeout=timedelta(seconds=collective_timeout()),
        device_id=device if device.type == 'cuda' else None,
    )
    return True


def connect_when_needed(members: int) -> None:
    """Let gloo connect two members of a large group when they first exchange something, unless the user has decided.

    Otherwise each connects to each at once, through a store on the first node that all read: bytes grow with the cube of the
    members, 2.8 MB for 64 and some 9 GB for 1,024. A ring needs two connections per member.
    """
    if members > MESH:
        os.environ.setdefault('TORCH_GLOO_LAZY_INIT', '1')


def _check_backends(device: torch.device) -> None:
    """Raise RequestError if the process group of somebody else lacks a backend for the CPU or for `device`."""
    config = torch_dist.get_backend_config()  # `cuda:nccl`, for example
    devices = {part.partition(':')[0] for part in config.split(',')}
    if missing := [kind for kind in dict.fromkeys(('cpu', device.type)) if kind not in devices]:
        backends = 'cpu:gloo,cuda:nccl' if device.type == 'cuda' else 'gloo'
        raise RequestError(
            f'the process group of this process has the backend {config}, and none for tensors on {" and ".join(missing)}: '
            f'let whoever makes it use the backend {backends!r} (Ray Train: TorchConfig(backend={backends!r}); accelerate: '
            f'InitProcessGroupKwargs(backend={backends!r}))'
        )


def leave(failed: bool = False) -> None:
    """Leave the process group; its threads end unless something still holds the group.

    A thread that is alive at interpreter exit can abort the process. With NCCL, where all ranks leave together, a failed rank
    must not leave: it would wait for ranks that wait for it, and never report its error. The end of the process closes the
    group then.
    """
    if torch_dist.is_initialized() and not (failed and 'nccl' in torch_dist.get_backend_config()):
        for_hooks = [group for group in torch_dist.distributed_c10d._world.pg_map if group.group_desc == HOOKS]
        torch_dist.destroy_process_group()
        while for_hooks:
            _wait_for_threads(for_hooks)


def _wait_for_threads(groups: list[Group]) -> None:
    """Take the last of `groups`, and free it when no thread holds it any more.

    A thread of gloo that has run a hook lets go of the group a moment after the step. If it were the last to hold it, it would
    free the group, wait for its own end, and abort the process.
    """
    group = groups.pop()
    for _ in range(PATIENCE):
        if sys.getrefcount(group) == 2:  # this variable and the argument
            return
        time.sleep(0.001)


def new_group(ranks: list[int] | None = None, *, use: str | None = None) -> Group:
    """Create another group of these ranks, collective over them only, or of all. `use`: HOOKS for hooks of DDP.

    One rank thus creates one group and not those of all nodes, and NCCL splits its communicator once for all nodes.
    """
    timeout = timedelta(seconds=collective_timeout())
    group = torch_dist.new_group(ranks, timeout=timeout, use_local_synchronization=ranks is not None, group_desc=use)
    assert isinstance(group, Group)
    return group


def node_group() -> Group | None:
    """Create the group of the ranks of this node. Collective; nodes may hold different numbers of ranks.

    Most launchers give consecutive ranks to a node, so the rank of its first one identifies it; else its name does.
    """
    if not torch_dist.is_initialized():
        return None
    places = gather_objects((_known_local_rank(), platform.node()))
    # The host's name where a launcher sets no LOCAL_RANK, or counts ranks in turns over the nodes (`mpirun --map-by node`).
    follows = [place[0] == 0 or (place[0] and before == (place[0] - 1, place[1])) for before, place in pairwise(places)]
    if places[0][0] == 0 and all(follows):
        node_of_rank = [str(other - local) for other, (local, _) in enumerate(places)]
    else:
        node_of_rank = [name for _, name in places]
    return new_group([other for other, node in enumerate(node_of_rank) if node == node_of_rank[rank()]])


def barrier() -> None:
    """Wait for all ranks."""
    if torch_dist.is_initialized():
        torch_dist.barrier()


def sum_over_ranks(value: Tensor, group: Group | None = None) -> Tensor:
    """Return the sum of `value` over the ranks of `group` (None: all), bitwise equal on each; not differentiable."""
    if group_size(group) == 1:
        return value
    if _is_small(value, group):
        # Summed here, in the order of ranks, so that all get the same bits.
        return _of_ranks(value, group).sum(0, dtype=value.dtype)
    value = value.clone(memory_format=torch.contiguous_format)
    torch_dist.all_reduce(value, group=group)
    return value


def largest_over_ranks(value: Tensor) -> Tensor:
    """Return the elementwise maximum of `value` over all ranks."""
    if world_size() == 1:
        return value
    if _is_small(value):
        return _of_ranks(value).amax(0)
    value = value.clone()
    torch_dist.all_reduce(value, torch_dist.ReduceOp.MAX)
    return value


def _is_small(value: Tensor, group: Group | None = None) -> bool:
    """True if latency dominates the exchange of `value` on CPUs; NCCL optimises that itself.

    Compiled code uses torch's all-reduce, which fits into its graph; nothing there can wait for another rank.
    """
    if torch.compiler.is_compiling() or value.device.type != 'cpu':
        return False
    return value.nbytes * group_size(group) <= SMALL


def _of_ranks(value: Tensor, group: Group | None = None) -> Tensor:
    """Return `value` of each rank, in order of rank, as [ranks, *value.shape].

    Each rank sends to each other at once, where Gloo's all-reduce takes 2 (ranks - 1) rounds. Time of 129 to 16,384 numbers
    against that all-reduce, medians of 350 in turns: 0.79 on 2 ranks; 0.35 to 0.66 on 3 and 0.6 on 4 that share two cores.
    Messages grow with the square of the ranks, so beyond MESH the first rank gathers the values and sends all of them.
    """
    if group_size(group) > MESH:
        return _by_the_first(value, group)
    # Send the same row to each rank.
    own = value.expand(group_size(group), *value.shape).contiguous()
    of_ranks = torch.empty_like(own)
    torch_dist.all_to_all_single(of_ranks, own, group=group)
    return of_ranks


def _by_the_first(value: Tensor, group: Group | None) -> Tensor:
    """Values of all ranks as `_of_ranks` has them, with 2 (ranks - 1) messages."""
    value = value.contiguous()
    of_ranks = value.new_empty(group_size(group), *value.shape)
    rows = list(of_ranks.unbind()) if torch_dist.get_rank(group) == 0 else None
    torch_dist.gather(value, rows, group=group, group_dst=0)
    torch_dist.broadcast(of_ranks, group=group, group_src=0)
    return of_ranks


def gather(value: Tensor, group: Group) -> Tensor:
    """Return `value` [N] of each rank of `group`, in order of rank, as [ranks, N]."""
    whole = value.new_empty(group_size(group), len(value))
    if torch_dist.get_backend(group) == 'gloo':  # cannot gather into one tensor on a GPU
        torch_dist.all_gather(list(whole.unbind()), value, group=group)
    else:
        torch_dist.all_gather_into_tensor(whole, value, group=group)
    return whole


def average_over_ranks(tensors: list[Tensor]) -> None:
    """Replace each tensor by its mean over ranks, in place."""
    for tensor in tensors if world_size() > 1 else []:
        torch_dist.all_reduce(tensor)
        tensor /= world_size()


@torch.no_grad()
def average_flat_over_ranks(tensors: list[Tensor]) -> None:
    """Replace each tensor by its mean over ranks, in place; small ones travel as one message."""
    # Latency dominates for the few hundred small buffers of a network: send them as few large messages.
    for message in _messages(tensors):
        packed = torch.cat([tensor.flatten() for tensor in message])
        average_over_ranks([packed])
        for tensor, mean in zip(message, torch.split(packed, [tensor.numel() for tensor in message]), strict=True):
            tensor.copy_(mean.view(tensor.shape))


def _messages(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Group tensors of one device and type into messages of at most MESSAGE elements."""
    kinds: dict[tuple[torch.device, torch.dtype], list[list[Tensor]]] = {}
    for tensor in tensors:
        messages = kinds.setdefault((tensor.device, tensor.dtype), [[]])
        if messages[-1] and sum(map(torch.numel, messages[-1])) + tensor.numel() > MESSAGE:
            messages.append([])
        messages[-1].append(tensor)
    return [message for messages in kinds.values() for message in messages]


def gather_rows_to_main(rows: Tensor) -> Tensor:
    """Gather `rows` [n, ...] of every rank on the main rank, in order of rank: [sum of n, ...]; other ranks get their own.

    In host memory. Rows are received in their final place, in messages of bounded size. `n` may differ between ranks.
    """
    own = rows.detach().cpu().contiguous()
    if world_size() == 1:
        return own
    counts = gather_objects(len(own))
    at_once = max(1, MESSAGE // max(1, own[:1].numel()))
    # Point to point: torch's gather needs equal sizes.
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
    """Gather `value` of every rank, in order of rank, on the main rank; other ranks get their own. Pickled: no large arrays."""
    if world_size() == 1:
        return [value]
    gathered: list[Any] | None = [None] * world_size() if rank() == 0 else None
    torch_dist.gather_object(value, gathered)
    return gathered or [value]


def gather_objects(value: Any) -> list[Any]:
    """Gather `value` of every rank, in order of rank. Pickled, between our own processes: small objects only."""
    if world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * world_size()
    torch_dist.all_gather_object(gathered, value)
    return gathered


def broadcast_object(value: Any) -> Any:
    """Return the object that rank 0 passed in. Collective."""
    if world_size() == 1:
        return value
    values = [value]
    torch_dist.broadcast_object_list(values, src=0)
    return values[0]


def broadcast_with_tensors(value: Any) -> Any:
    """Broadcast an object with many tensors as `broadcast_object` does; tensors are sent one by one, unpickled, to host
    memory.
    """
    if world_size() == 1:
        return value
    # First the structure, with shapes in place of tensors, as one pickled object ...
    leaves, tree = tree_flatten(value) if rank() == 0 else ([], None)
    forms = [(leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    forms, tree = broadcast_object((forms, tree))
    received = []
    # ... then each tensor by itself, into memory of its final size: pickled, a checkpoint would need it twice.
    for number, form in enumerate(forms):
        if isinstance(form, tuple) and len(form) == 2 and isinstance(form[1], torch.dtype):
            own = leaves[number].contiguous() if rank() == 0 else torch.empty(form[0], dtype=form[1])
            torch_dist.broadcast(own, src=0)
            form = own
        received.append(form)
    return tree_unflatten(received, tree)
