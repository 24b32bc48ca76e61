"""The trainer, observed: the same steps, with a timeline that is told where they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from phalanx import dist
from phalanx.bench.flops import step_flops
from phalanx.bench.timeline import Event, Moment, Timeline
from phalanx.config.schema import Recipe
from phalanx.precision import Precision, PrecisionOptions
from phalanx.report import Report
from phalanx.task import B, P, S, Task
from phalanx.trainer import Trainer

# In the order in which a step goes through them.
PHASES = ('data wait', 'host to device', 'forward', 'loss', 'communication', 'backward', 'optimizer', 'other')


class WatchedTrainer(Trainer[S, B, P]):
    """Trains as its parent does, without log, evaluation and checkpoints, and keeps a timeline of its steps.

    `communication` is what ranks wait for each other and for the network: exchanges of norms and losses, and what of the
    gradients is still on its way when the last of them is ready.
    """

    def __init__(self, recipe: Recipe, task: Task[S, B, P], *, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, task, folder=folder, device=device)
        self.report = Report(folder, main=False, name='', total_steps=0)  # bad samples are told to it
        self.timeline = Timeline(device)
        self.precision = WatchedPrecision(recipe.precision, device, self.timeline)
        self.judge.register_forward_pre_hook(lambda *_: self.timeline.switch('forward'))
        self.judge.network.register_forward_pre_hook(lambda *_: self.timeline.switch('forward'))
        self.judge.network.register_forward_hook(lambda *_: self.timeline.switch('loss'))
        self.judge.register_forward_hook(lambda *_: self.timeline.switch('other'))
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._gradient_is_ready)  # type: ignore[no-untyped-call]

    def _gradient_is_ready(self, parameter: Tensor) -> None:
        self.timeline.note('gradient', parameter.numel() * parameter.element_size())

    def run(self, steps: int, warmup: int) -> int:
        """Takes `warmup` (at least 1) + `steps` optimizer updates, of which the timeline then holds the last `steps`.

        Returns the floating-point operations of a step on this rank.
        """
        assert warmup >= 1
        self.until = self.step + 10 * (warmup + steps)  # not reached: else workers would have less to do towards the end
        batches = self.batches()
        with exchanges_watched(self.timeline):
            micro_batches = next(batches)
            flops = step_flops(self, micro_batches)  # which settles the buckets, too
            for number in range(warmup + steps):
                if number == warmup:
                    self.begin()
                self.train_step([_WatchedBatch(batch, self.timeline) for batch in micro_batches])  # type: ignore[misc]
                self.step += 1
                with self.timeline.during('data wait'):
                    micro_batches = next(batches)
                self.timeline.end_step()
        self.read_numbers(keep=0)
        return flops

    def meet(self) -> None:
        with self.timeline.during('communication'):
            super().meet()

    def begin(self) -> None:
        """Forgets what was measured so far."""
        self.timeline.clear()
        if self.device.type == 'cuda':
            torch.cuda.reset_peak_memory_stats(self.device)


class WatchedPrecision(Precision):
    """Steps as its parent does, and tells the timeline when it goes back and when it updates."""

    def __init__(self, options: PrecisionOptions, device: torch.device, timeline: Timeline) -> None:
        super().__init__(options, device)
        self.timeline = timeline

    def backward(self, loss: Tensor) -> None:
        with self.timeline.during('backward'):
            super().backward(loss)
            last = _last_gradient(self.timeline.events[-1])
            if last is not None and dist.world_size() > 1:  # what came after it is waiting for the other ranks' gradients
                self.timeline.switch('communication', last)

    def step(self, optimizer: Optimizer, clip: Callable[[], Tensor]) -> Tensor:
        with self.timeline.during('optimizer'):
            return super().step(optimizer, clip)


def _last_gradient(events: Sequence[Event]) -> Moment | None:
    return next((event.moment for event in reversed(events) if event.kind == 'gradient'), None)


class _WatchedBatch:
    """A batch whose way to the device is timed; all that the trainer does with it."""

    def __init__(self, batch: Any, timeline: Timeline) -> None:
        self.batch, self.timeline = batch, timeline

    def to(self, device: torch.device) -> Any:
        with self.timeline.during('host to device'):
            return self.batch.to(device)


@contextlib.contextmanager
def exchanges_watched(timeline: Timeline) -> Iterator[None]:
    """While it lasts, each sum over ranks is told to the timeline, in the backward pass too; but not those in compiled code."""
    plain = dist.sum_over_ranks

    def watched(value: Tensor, group: dist.Group | None = None) -> Tensor:
        if torch.compiler.is_compiling():  # a norm that tells cannot be compiled together with what is around it
            return plain(value, group)
        size = value.numel() * value.element_size()
        timeline.note(f'{timeline.phase} exchange', size)
        if dist.group_size(group) == 1:
            return told(value, lambda: timeline.note('backward exchange', size))
        value = told(value, lambda: timeline.switch('backward'))
        with timeline.during('communication'):
            whole = plain(value, group)
        return told(whole, lambda: timeline.switch('communication'))

    dist.sum_over_ranks = watched
    try:
        yield
    finally:
        dist.sum_over_ranks = plain


def told(value: Tensor, tell: Callable[[], None]) -> Tensor:
    """`value`; `tell` is called when the backward pass comes by."""
    return _Told.apply(value, tell)  # type: ignore[no-any-return]


class _Told(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tell: Callable[[], None]) -> Tensor:
        ctx.tell = tell
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.tell()
        return grads[0], None
