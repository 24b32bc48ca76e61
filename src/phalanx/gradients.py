"""Gradients on their way: their mean over ranks, while the backward pass goes on, and forms in which they are less to send."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as torch_dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.dist import Group, group_size, new_group, on_main_rank, rank, world_size

# Running statistics are equal on all ranks already. The option that says so was renamed after torch 2.11.
RENAMED = 'forward_sync_buffers' in inspect.signature(DistributedDataParallel).parameters
NO_BUFFERS: dict[str, Any] = {'forward_sync_buffers' if RENAMED else 'broadcast_buffers': False}

Bucket: TypeAlias = Any  # torch.distributed.GradBucket, of which mypy knows nothing
BUCKETS = 8  # that all gradients make: what is still to be sent after the backward pass is one of them
BUCKET_MB = 1.0, 25.0  # of each, at least and at most: DDP's own for the first and for the others
BLOCK = 256  # neighbouring numbers that share a scale in int8
TINY = 1e-35  # instead of the scale of a block of zeros


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    compression: Literal['none', 'bf16', 'fp16', 'int8', 'power_sgd'] = 'none'
    """How gradients travel. Half precision is half as much, int8 a quarter (256 numbers share a scale); power_sgd sends
    a matrix as a product of two thin ones and adds what is lost to the next step's (Vogels et al. 2019). A checkpoint keeps
    that of each rank, as large as its gradients."""
    bucket_mb: float | None = None
    """MiB of gradients that travel at once, as soon as they are ready; null: an eighth of all, 1 to 25."""
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
        if self.bucket_mb is not None and self.bucket_mb <= 0:
            raise ValueError(f'bucket_mb must be above 0, got {self.bucket_mb}')
        if self.rank < 1 or self.plain_steps < 1:
            raise ValueError(f'rank and plain_steps must be at least 1, got {self.rank} and {self.plain_steps}')
        if self.local_steps < 1 or self.local_from < 0:
            raise ValueError(f'local_steps must be at least 1 and local_from 0, got {self.local_steps} and {self.local_from}')
        if self.local_steps > 1 and self.compression != 'none':
            raise ValueError(
                f'compression {self.compression} and local_steps {self.local_steps} do not go together: '
                'between machines that step alone no gradients travel; leave out one of them'
            )

    def bucket(self, module: nn.Module) -> float:
        """MiB of the gradients of `module` that travel at once."""
        least, most = BUCKET_MB
        return self.bucket_mb or min(max(gradients_mb(module) / BUCKETS, least), most)

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
    # The strides of a window of one channel can be written in two ways, of which torch warns at length; nothing can be done.
    warnings.filterwarnings('ignore', 'Grad strides do not match bucket view strides')
    replica = DistributedDataParallel(module, gradient_as_bucket_view=True, bucket_cap_mb=options.bucket(module), **NO_BUFFERS)
    device = next(module.parameters()).device
    memory, sender = None, None
    match options.compression:
        case 'none' if options.local_steps > 1:
            replica.register_comm_hook(None, lambda state, bucket: _average_among(ranks(), bucket))
        case 'none':
            pass
        case 'power_sgd':
            memory = PowerSgd(options, device)
            sender = Sender(device, memory.average)
        case 'int8':
            sender = Sender(device, average_in_bytes)
        case half:
            dtype = {'bf16': torch.bfloat16, 'fp16': torch.float16}[half]
            replica.register_comm_hook(None, lambda state, bucket: _average_in(dtype, bucket))
    if sender is not None:
        replica.register_comm_hook(sender, lambda sender, bucket: sender.send(bucket))
    return replica, memory


def gradients_mb(module: nn.Module) -> float:
    """MiB that each rank sends of its gradients in a step."""
    wanted = (parameter for parameter in module.parameters() if parameter.requires_grad)
    return sum(parameter.numel() * parameter.element_size() for parameter in wanted) / 2**20


class Sender:
    """Averages buckets of gradients that take several exchanges, one bucket after the other, while the rank computes on.

    gloo must be asked for its exchanges in the same order on all ranks, and norms have theirs at the same time. So on CPUs this
    is a thread with a group of its own; on a GPU it is a stream, and NCCL keeps the order in which it was asked.
    """

    def __init__(self, device: torch.device, average: Callable[[Bucket, Group | None], None]) -> None:
        self.device, self.average = device, average
        self.stream = torch.cuda.Stream(device) if device.type == 'cuda' else None  # type: ignore[no-untyped-call]
        self.group = new_group() if self.stream is None else None
        self.thread = ThreadPoolExecutor(1, 'gradients') if self.stream is None else None

    def send(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """What DDP asks for when a bucket is ready: its mean over ranks, some time."""
        mean: torch.futures.Future[Tensor] = torch.futures.Future(devices=[self.device] if self.stream else None)
        if self.thread is not None:
            self.thread.submit(self.averaged, bucket).add_done_callback(partial(_hand_over, mean))
        elif self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                mean.set_result(self.averaged(bucket))
        return mean

    @torch.no_grad()
    def averaged(self, bucket: Bucket) -> Tensor:
        self.average(bucket, self.group)
        whole: Tensor = bucket.buffer()
        return whole


def _hand_over(mean: torch.futures.Future[Tensor], done: Future[Tensor]) -> None:
    """Gives what a thread made, or the error it met, to whoever waits for `mean`."""
    if (error := done.exception()) is not None:
        mean.set_exception(error)  # type: ignore[arg-type] # it is declared to take a result
    else:
        mean.set_result(done.result())


class PowerSgd:
    """What PowerSGD remembers from step to step: by bucket, the two thin matrices and what this rank has not yet sent."""

    def __init__(self, options: GradientOptions, device: torch.device) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd  # a third of a second

        self.columns, self.device, self.hook = options.rank, device, power_sgd.powerSGD_hook
        self.of_torch = power_sgd.PowerSGDState(None, options.rank, options.plain_steps + 1)  # at least 2, says torch
        self.of_torch.iter = 1

    def average(self, bucket: Bucket, group: Group | None) -> None:
        """Replaces a bucket of DDP's gradients by its mean over ranks."""
        self.of_torch.process_group = group
        self.hook(self.of_torch, bucket).wait()

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


def average_in_bytes(bucket: Bucket, group: Group | None) -> None:
    """Replaces a bucket of DDP's gradients by its mean over ranks, of which each sends a byte a number, there and back.

    Each rank averages one part of it. What is lost is below 1/254 of the largest of BLOCK neighbours, twice.
    """
    gradients, ranks = bucket.buffer(), group_size(group)
    parts = F.pad(gradients, (0, -len(gradients) % (ranks * BLOCK))).view(ranks, -1)
    sent = as_bytes(parts)
    received = torch.empty_like(sent)
    torch_dist.all_to_all_single(received, sent, group=group)
    own = as_bytes(from_bytes(received).mean(0, keepdim=True))
    whole = own.new_empty(ranks, own.shape[1])
    torch_dist.all_gather_into_tensor(whole, own, group=group)
    gradients.copy_(from_bytes(whole).flatten()[: len(gradients)])


def as_bytes(parts: Tensor) -> Tensor:
    """[parts, numbers], numbers a multiple of BLOCK, as int8 [parts, numbers + 4 * blocks]: codes of -127 to 127, then scales.

    A block that holds an infinite number or none comes back without a finite one, so that a loss scale notices.
    """
    blocks = parts.view(len(parts), -1, BLOCK)
    scales = torch.maximum(blocks.amax(2), blocks.amin(2).neg_()).div_(127)
    codes = (blocks / scales.clamp(min=TINY)[..., None]).round_()
    message = torch.empty(len(parts), parts.shape[1] + 4 * scales.shape[1], dtype=torch.int8, device=parts.device)
    message[:, : parts.shape[1]] = codes.view(len(parts), -1)
    message[:, parts.shape[1] :].view(torch.float32).copy_(scales)
    return message


def from_bytes(message: Tensor) -> Tensor:
    """The numbers [parts, numbers] that `as_bytes` was given, but for what is lost."""
    numbers = message.shape[1] // (BLOCK + 4) * BLOCK
    codes = message[:, :numbers].view(len(message), -1, BLOCK)
    scales = message[:, numbers:].view(torch.float32)
    return codes.float().mul_(scales[..., None]).view(len(message), numbers)


def _average_in(dtype: torch.dtype, bucket: Bucket) -> torch.futures.Future[Tensor]:
    """The mean over ranks of a bucket of DDP's gradients, sent as `dtype`. (torch's own hook refuses bf16 without NCCL.)"""
    sent = bucket.buffer().to(dtype).div_(world_size())  # first, so that the sum is in range
    done = torch_dist.all_reduce(sent, async_op=True).get_future()
    return done.then(lambda whole: bucket.buffer().copy_(whole.value()[0]))


def _average_among(group: Group | None, bucket: Bucket) -> torch.futures.Future[Tensor]:
    """The mean over the ranks of `group` of a bucket of DDP's gradients."""
    sent = bucket.buffer().div_(group_size(group))
    done = torch_dist.all_reduce(sent, group=group, async_op=True).get_future()
    return done.then(lambda whole: whole.value()[0])
