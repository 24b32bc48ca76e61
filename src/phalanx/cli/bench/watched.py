"""The trainer, observed: the same steps, with a timeline that is told where they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.cli.bench.flops import step_flops
from phalanx.cli.bench.timeline import Event, Moment, Timeline
from phalanx.engine.schema import Recipe
from phalanx.engine.trainer import Trainer
from phalanx.families.task import B, P, S, Task
from phalanx.nn.precision import Precision, PrecisionOptions
from phalanx.parallel import dist
from phalanx.parallel.norms import BatchNorm2d

WORD = 8  # bytes of a number that norms send on CPUs
# In the order in which a step goes through them.
PHASES = ('data wait', 'host to device', 'forward', 'loss', 'communication', 'backward', 'optimizer', 'other')


class WatchedTrainer(Trainer[S, B, P]):
    """Trains as its parent does, without log, evaluation and checkpoints, and keeps a timeline of its steps.

    `communication` is what ranks wait for each other and for the network: exchanges of norms and losses, and what of the
    gradients is still on its way when the last of them is ready.
    """

    def __init__(self, recipe: Recipe, task: Task[S, B, P], *, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, task, folder=folder, device=device)
        self.timeline = Timeline(device)
        self.precision = self.passes.precision = WatchedPrecision(recipe.precision, device, self.timeline)
        self.judge.register_forward_pre_hook(lambda *_: self.timeline.switch('forward'))
        self.judge.network.register_forward_pre_hook(lambda *_: self.timeline.switch('forward'))
        self.judge.network.register_forward_hook(lambda *_: self.timeline.switch('loss'))
        self.judge.register_forward_hook(lambda *_: self.timeline.switch('other'))
        for norm in self.model.modules():
            if isinstance(norm, BatchNorm2d) and recipe.norm_sync in ('global', 'node'):
                norm.register_forward_hook(self._norm_exchanges)
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._gradient_is_ready)  # type: ignore[no-untyped-call]

    def _gradient_is_ready(self, parameter: Tensor) -> None:
        self.timeline.note('gradient', parameter.numel() * parameter.element_size())

    def _norm_exchanges(self, norm: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Notes what a shared norm sends, each way, also where there is nobody to send it to."""
        if torch.compiler.is_compiling() or not output.requires_grad:
            return
        channels = output.shape[1]
        self.timeline.note('forward exchange', (2 * channels + 1) * WORD)
        output.register_hook(lambda _: self.timeline.note('backward exchange', 2 * channels * WORD))  # type: ignore[no-untyped-call]

    def run(self, steps: int, warmup: int) -> int:
        """Takes `warmup` (at least 1) + `steps` optimizer updates, of which the timeline then holds the last `steps`.

        Returns the floating-point operations of a step on this rank.
        """
        assert warmup >= 1
        self.until = self.at.step + 10 * (warmup + steps)  # not reached: else workers would have less to do towards the end
        batches = self.batches()
        with exchanges_watched(self.timeline):
            batch = next(batches)
            flops = step_flops(self, batch)  # which arranges the buckets, too
            for number in range(warmup + steps):
                if number == warmup:
                    self.begin()
                self.train_step(_WatchedBatch(batch, self.timeline))  # type: ignore[arg-type]
                self.at.step += 1
                with self.timeline.during('data wait'):
                    batch = next(batches)
                self.timeline.end_step()
        self.read_numbers(keep=0)
        return flops

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
    """While it lasts, each sum over ranks is communication to the timeline; but not those in compiled code."""
    plain = dist.sum_over_ranks

    def watched(value: Tensor, group: dist.Group | None = None) -> Tensor:
        if torch.compiler.is_compiling():
            return plain(value, group)
        if timeline.phase in ('loss', 'other'):
            timeline.note(f'{timeline.phase} exchange', value.numel() * value.element_size())
        with timeline.during('communication') if dist.group_size(group) > 1 else contextlib.nullcontext():
            return plain(value, group)

    dist.sum_over_ranks = watched
    try:
        yield
    finally:
        dist.sum_over_ranks = plain
