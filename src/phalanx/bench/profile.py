"""Time of a training step by phase, from torch.profiler, and the profile that a plan needs."""

from __future__ import annotations

import contextlib
import json
import math
import os
from bisect import bisect, bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from phalanx.data.batch import ImageBatch
from phalanx.engine.trainer import Trainer

FIRST_BUCKET = 2**20  # bytes of gradients that DDP sends as soon as they are ready: 1 MiB first,
BUCKET = 25 * 2**20  # then 25 MiB at a time
WORD = 8  # bytes of a number that norms and losses send on CPUs
# In the order in which a step goes through them.
PHASES = ('data wait', 'host to device', 'forward', 'loss', 'communication', 'backward', 'optimizer', 'other')

# Ranges in the trace: ours, and those of torch.
WAIT, WITH_LOSS, NETWORK = 'phalanx: data', 'phalanx: network and loss', 'phalanx: network'
BACKWARD, UPDATE, READY = 'autograd::engine::evaluate_function: ', 'Optimizer.step#', 'torch::autograd::AccumulateGrad'
COMPUTING = ('aten::', 'Torch-Compiled Region', 'CompiledFunction')


class Message(NamedTuple):
    """Message sent over the network."""

    at: float  # seconds since the pass began in which it is sent, forward or backward
    size: int  # bytes


class Step(NamedTuple):
    """Phases of a training step in seconds, and the messages that it sends to other ranks."""

    phases: dict[str, float]
    exchanges: int = 0  # that it waits for
    forward: tuple[Message, ...] = ()  # exchanges that the forward pass waits for: one per batch norm
    losses: tuple[Message, ...] = ()  # the step's numbers
    backward: tuple[Message, ...] = ()  # exchanges that the backward pass waits for
    gradients: tuple[Message, ...] = ()  # of each parameter, in the order in which they become ready

    @property
    def seconds(self) -> float:
        return math.fsum(self.phases.values())

    def scale(self, factor: float) -> Step:
        """Return the step with all times multiplied by `factor`."""
        messages = (tuple(Message(factor * at, size) for at, size in sent) for sent in self[2:])
        return Step({phase: factor * seconds for phase, seconds in self.phases.items()}, self.exchanges, *messages)


def profile_steps(trainer: Trainer, batches: Iterator[ImageBatch], steps: int) -> list[Step]:
    """Train `steps` steps under torch.profiler."""
    os.environ.setdefault('KINETO_LOG_LEVEL', '9')  # else it reports its start, its end and a missing GPU
    cuda = trainer.device.type == 'cuda'
    with (
        _label_ranges(trainer),
        profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda], record_shapes=True) as seen,
    ):
        for _ in range(steps):
            with record_function(WAIT):
                batch = next(batches)
            trainer.train_step(batch)
            trainer.progress.step += 1
        with record_function(WAIT):
            pass
        if cuda:
            torch.cuda.synchronize(trainer.device)
    numbers = 2 * len(trainer.with_loss.names) + len(trainer.flags.collect())
    tensors = sum(parameter.requires_grad for parameter in trainer.model.parameters())
    events = seen.events() or ()
    assert seen.profiler is not None
    _link(events, seen.profiler.kineto_results)
    return split_steps(events, numbers, tensors)


def _link(events: Iterable[Any], trace: Any) -> None:
    """Add `linked_correlation_id`, the operation that launched each work of a device, which torch 2.11 leaves out."""
    begin = trace.trace_start_ns()
    links = {((e.start_ns() - begin) / 1000, e.device_resource_id()): e.linked_correlation_id() for e in trace.events()}
    for event in events:
        if not hasattr(event, 'linked_correlation_id'):
            event.linked_correlation_id = links.get((event.time_range.start, event.device_resource_id), 0)


@contextlib.contextmanager
def _label_ranges(trainer: Trainer) -> Iterator[None]:
    """Mark the network and its loss as ranges of the trace."""
    hooks, open_ranges = [], []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            open_ranges.append(record_function(name).__enter__())  # type: ignore[no-untyped-call]

        return hook

    def leave(*_: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    modules: tuple[tuple[str, nn.Module], ...] = ((WITH_LOSS, trainer.with_loss), (NETWORK, trainer.with_loss.network))
    for name, module in modules:
        hooks += [module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def split_steps(events: Iterable[Any], numbers: int, tensors: int) -> list[Step]:
    """Split the events of a trace into steps. Each sends `numbers` numbers of its loss and the gradients of `tensors` tensors.

    A moment of the host, such as the begin of the loss, becomes a moment of the device: when the device has done all that was
    launched before. Every moment of the device belongs to one phase, so phases add up to the step. `communication` is what of
    it passes without computing until an exchange ends, whose own phase is then so much shorter.
    """
    events = sorted(events, key=lambda event: event.time_range.start)
    host = [event for event in events if event.device_type.name == 'CPU' and not event.is_async]
    on_device = [event for event in events if event.device_type.name == 'CUDA' and not event.is_user_annotation]
    busy = [event for event in on_device if 'nccl' not in event.name]
    exchanges = [event for event in on_device if 'nccl' in event.name] + [e for e in events if e.name.startswith('gloo:')]
    launched = _LaunchedWork(host, on_device)
    waits = _waits(busy or [event for event in host if event.name.startswith(COMPUTING)], exchanges)
    starts = [event.time_range.start for event in host if event.name == WAIT]
    return [
        _step([event for event in host if begin <= event.time_range.start < end], end, launched, waits, numbers, tensors)
        for begin, end in pairwise(starts)
    ]


class _LaunchedWork:
    """Completion times of device work launched by the host; on a CPU, work completes as it is launched."""

    def __init__(self, host: Sequence[Any], on_device: Sequence[Any]) -> None:
        # Calls of the CUDA runtime are numbered for themselves, and so like operations that have nothing to do with them.
        begins = {event.id: event.time_range.start for event in host if not event.name.startswith('cu')}
        known = sorted(
            (begins[e.linked_correlation_id], e.time_range.end) for e in on_device if e.linked_correlation_id in begins
        )
        self.begins = [begin for begin, _ in known]
        self.ends = list(accumulate((end for _, end in known), max))

    def finish_time(self, moment: float) -> float:
        """Time at which all work launched before `moment` is done, at least `moment`."""
        before = bisect(self.begins, moment)
        return max(moment, self.ends[before - 1]) if before else moment


def _waits(busy: Sequence[Any], exchanges: Sequence[Any]) -> list[tuple[float, float]]:
    """Gaps without computation that end with an exchange: (start of gap or exchange, start of the next work)."""
    begins = [event.time_range.start for event in busy]
    ends = list(accumulate((event.time_range.end for event in busy), max))
    found: dict[int, float] = {}
    for exchange in exchanges:
        after = bisect_left(begins, exchange.time_range.end)
        if 0 < after < len(busy) and ends[after - 1] <= exchange.time_range.end:
            begin = max(ends[after - 1], exchange.time_range.start)
            found[after] = min(begin, found.get(after, math.inf))
    return [(begin, begins[after]) for after, begin in sorted(found.items())]


def _step(
    host: Sequence[Any], end: float, launched: _LaunchedWork, waits: Sequence[tuple[float, float]], numbers: int, tensors: int
) -> Step:
    """One step from its events; times of a trace are in microseconds."""
    marks = [(launched.finish_time(moment), phase) for moment, phase in _marks(host)]
    phases = dict.fromkeys(PHASES, 0.0)
    for (begin, phase), (until, _) in pairwise([*marks, (launched.finish_time(end), '')]):
        waited = math.fsum(max(0.0, min(until, late) - max(begin, early)) for early, late in waits)
        phases[phase] += (until - begin - waited) / 1e6
        phases['communication'] += waited / 1e6
    first = {phase: moment for moment, phase in reversed(marks)}

    def sent(phase: str, name: str, size: Callable[[Sequence[int]], int]) -> tuple[Message, ...]:
        """An exchange for each range of this name, at its begin, with `size` of the shape of its first input."""
        return tuple(
            Message((launched.finish_time(event.time_range.start) - first[phase]) / 1e6, size(event.input_shapes[0]))
            for event in host
            if event.name.endswith(name) and event.input_shapes
        )

    after_loss = max(moment for moment, phase in marks if phase == 'other' and moment <= first['backward'])
    return Step(
        phases,
        sum(marks[0][0] <= begin < launched.finish_time(end) for begin, _ in waits),
        forward=sent('forward', 'aten::batch_norm', lambda shape: (2 * shape[1] + 1) * WORD),
        losses=(Message((after_loss - first['forward']) / 1e6, numbers * WORD),),
        backward=sent('backward', 'BatchNormBackward0', lambda shape: 2 * shape[1] * WORD),
        gradients=sent('backward', READY, lambda shape: 4 * math.prod(shape))[-tensors:],
    )


def _marks(host: Sequence[Any]) -> list[tuple[float, str]]:
    """(time, phase) at which each phase begins on the host. Ranges enclose those nested in them."""
    marks = []
    for event in host:
        begin, end = event.time_range.start, event.time_range.end
        if event.name == WAIT:
            marks += [(begin, 'data wait'), (end, 'host to device')]
        elif event.name == WITH_LOSS:
            marks += [(begin, 'forward'), (end, 'other')]
        elif event.name == NETWORK:
            marks += [(begin, 'forward'), (end, 'loss')]
        elif event.name.startswith(BACKWARD):
            marks += [(begin, 'backward'), (end, 'optimizer')]
        elif event.name.startswith(UPDATE):
            marks.append((end, 'other'))
    marks.sort(key=lambda mark: mark[0])
    between = [('optimizer', 'backward')]  # two operations of one backward pass
    return [here for here, following in pairwise([*marks, (math.inf, '')]) if (here[1], following[1]) not in between]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One training step of one rank, alone, as a plan needs it. Raises ValueError for what cannot be."""

    recipe: str
    device: str
    samples: int  # of a step on this rank
    run_samples: int  # of the whole run
    norm_sync: str
    phases: dict[str, float]  # seconds; this and the messages as in Step
    forward: tuple[Message, ...]
    losses: tuple[Message, ...]  # over all ranks, whatever norm_sync says
    backward: tuple[Message, ...]
    gradients: tuple[Message, ...]
    loader_rate: float  # samples per second per worker
    workers: int
    bucket_mb: float | None = None  # MiB of gradients that travel at once; None: as DDP itself has it

    def __post_init__(self) -> None:
        if self.samples < 1 or not self.phases or not self.gradients:
            raise ValueError('a profile needs samples, phases and gradients')

    @property
    def computing(self) -> float:
        """Seconds of a step without waiting for data."""
        return math.fsum(seconds for phase, seconds in self.phases.items() if phase != 'data wait')

    def buckets(self) -> list[Message]:
        """The gradients as DDP sends them: each bucket when the last one in it is ready."""
        first, later = (FIRST_BUCKET, BUCKET) if self.bucket_mb is None else 2 * (self.bucket_mb * 2**20,)
        messages, size_so_far, limit = [], 0, first
        for at, size in self.gradients:
            size_so_far += size
            if size_so_far >= limit:
                messages.append(Message(at, size_so_far))
                size_so_far, limit = 0, later
        if size_so_far:
            messages.append(Message(self.gradients[-1].at, size_so_far))
        return messages

    def write(self, file: Path) -> None:
        """Write the profile as JSON. Raises OSError."""
        file.write_text(json.dumps(asdict(self), indent=1) + '\n', encoding='utf-8')

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a profile. Raises ValueError for other files, OSError if the file cannot be read."""
        try:
            fields: dict[str, Any] = json.loads(file.read_text(encoding='utf-8'))
            for name in ('forward', 'losses', 'backward', 'gradients'):
                fields[name] = tuple(Message(*message) for message in fields[name])
            return cls(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f'{file} is not a profile ({error}); `phalanx bench train --profile FILE` writes one') from None
