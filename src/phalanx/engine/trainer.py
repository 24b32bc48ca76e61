"""Training of any Task: this file is the training run, read from top to bottom."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from phalanx.data import cache
from phalanx.data.batch import ImageBatch
from phalanx.engine.device import place_network
from phalanx.engine.ema import Ema
from phalanx.engine.evaluation import Setup
from phalanx.engine.evaluator import Evaluator
from phalanx.engine.loader import LoadingCancelledError, Stream, check_bad_samples, check_batch, worker_notes
from phalanx.engine.meters import BucketMeter, StepNumbers, Stopwatch, measure_throughput, peak_memory_mb
from phalanx.engine.optim.clip import clip
from phalanx.engine.optim.frozen import TemporaryFreeze, freeze
from phalanx.engine.optim.groups import parameter_groups
from phalanx.engine.optim.optimizers import set_lr
from phalanx.engine.optim.scaling import scale_lr
from phalanx.engine.parts import Parts
from phalanx.engine.passes import NetworkWithLoss, Passes
from phalanx.engine.precision import Precision
from phalanx.engine.progress import DIVERGENCE, RECOVERY, Progress
from phalanx.engine.saving import Saver
from phalanx.engine.schema import Recipe
from phalanx.engine.step_flags import StepFlags
from phalanx.engine.summary import final_warnings, read_summary, summarise
from phalanx.engine.timeline import Length, Timeline, in_steps
from phalanx.families.task import Task
from phalanx.parallel import dist, norms
from phalanx.parallel.heartbeat import Heartbeat
from phalanx.parallel.step import WholeStep
from phalanx.report.readable import format_number, pluralize
from phalanx.report.report import Report
from phalanx.system.errors import RunError, StoppedError
from phalanx.weights.checkpoint import Checkpoints, LoadedCheckpoint


class Trainer:
    """One run of one task on this rank; the same code for one rank and many."""

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        *,
        folder: Path,
        device: torch.device,
        progress: Progress | None = None,
        parts: Parts | None = None,
    ) -> None:
        """`progress`: progress of a checkpoint to be passed to `restore`; `train.init_from` is then not loaded.

        `parts`: data sets and network, if checks have already built them.
        """
        parts = parts or Parts(recipe, task)
        self.recipe, self.task, self.device = recipe, task, device
        train = recipe.train

        self.dataset, self.evalset = parts.train, parts.evaluation
        self.set_lengths(progress or Progress())
        batch = self.stream.global_batch_size

        # The network. Every rank draws the same initial weights.
        self.model = parts.begin()
        self.initial = [] if progress else parts.initial
        # Warnings for the report: oddities of the data, too many workers, and initial weights that were not loaded.
        of_weights = [note for loaded in self.initial for note in loaded.notes]
        self.notes = [*self.dataset.notes, *self.evalset.notes, *worker_notes(train.workers), *of_weights]
        # Before the optimizer, which gets trainable parameters only; for `freeze_steps` see TemporaryFreeze.
        if train.freeze_steps is None:
            freeze(self.model, train.freeze)
        place_network(self.model, device, channels_last=train.channels_last)  # before norms and EMA allocate their tensors
        statistics = norms.synchronise(self.model, recipe.norm_sync, dist.node_group() if recipe.norm_sync == 'node' else None)
        self.temporary_freeze = TemporaryFreeze(self.model, train.freeze, train.freeze_steps or 0)

        # Optimizer, schedule, EMA.
        groups = parameter_groups(self.model, recipe.parameters)
        self.optimizer = recipe.optimizer(groups)
        self.parameters = tuple(self.model.parameters())  # once: finding them takes 2 % of a step of a deep network
        self.lr = scale_lr(self.optimizer.defaults['lr'], recipe.scaling, batch)
        length = train.steps or in_steps(train.epochs or 0, self.steps_per_epoch)
        self.schedule = recipe.schedule(self.lr, length, self.steps_per_epoch, self.timeline)
        self.ema = Ema(self.model, recipe.ema) if recipe.ema else None
        self.notes += self.ema.notes(self.steps) if self.ema else []

        # Forward and backward passes.
        self.precision = Precision(recipe.precision, device)
        torch.backends.cudnn.benchmark = task.has_fixed_size  # every new size would start a search for the fastest kernels
        options = train.compile_options(device.type)
        network: nn.Module = self.model if options is None else torch.compile(self.model, **options)  # type: ignore[call-overload]
        epochs = self.timeline.equivalent_steps(self.steps) / self.steps_per_epoch
        self.notes += task.notes(epochs)
        self.with_loss = NetworkWithLoss(task, network, WholeStep(samples=batch, epochs=epochs))
        self.passes = Passes(self.with_loss, self.stream, self.precision, statistics, recipe.gradients, device)

        # Checkpoints, data loader, evaluation, meters.
        self.checkpoints = Checkpoints(folder, keep=recipe.checkpoint.keep)
        # Everything that the next step depends on, apart from the position in the data stream, which the step determines.
        saved = self.model, self.optimizer, self.precision, self.ema, self.passes.compression
        self.saver = Saver(self.checkpoints, *saved, recipe.optimizer, asynchronous=recipe.checkpoint.asynchronous)
        setup = Setup(recipe, device, self.precision, cache.node_cache(train.cache))
        self.loader = setup.loader(task, self.dataset, replace=True)
        self.flags = StepFlags(self.loader)
        self.loader.is_cancelled = self.may_cancel_loading
        self.heartbeat = Heartbeat(dist.rank())
        context = self.model, self.ema, setup, self.heartbeat, self.flags, self.with_loss.whole
        self.evaluator = Evaluator(task, self.evalset, *context)
        self.clock, self.bucket_meter = Stopwatch(), BucketMeter()
        self.numbers = StepNumbers()
        self.report = Report(folder, main=False, name='', total_steps=self.until)  # silent, until `train` gets another

    def set_lengths(self, progress: Progress) -> None:
        """Set progress, timeline and lengths in steps. Steps count updates; earlier starts may have had another global
        batch.
        """
        # Durations, converted to steps once; everything below counts steps.
        recipe, train, size, ranks = self.recipe, self.recipe.train, len(self.dataset), (dist.rank(), dist.world_size())
        batch = train.global_batch(dist.world_size())
        self.progress, self.before = progress, replace(progress)
        self.started_at, self.started = progress.step, time.perf_counter()
        self.timeline = Timeline.resume(progress.batches, progress.step, batch, in_epochs=train.steps is None)
        progress.batches, progress.ranks = self.timeline.batches, dist.world_size()
        check_batch(size, batch, dist.world_size())
        if train.micro_batches == 'auto':
            raise ValueError('train.micro_batches: auto is chosen before a Trainer is built (engine/fit.py)')
        self.stream = Stream(size, batch, train.micro_batches, train.seed, *ranks, self.timeline.offset)
        self.steps_per_epoch = size / batch
        self.steps = train.steps or self.timeline.last_step(train.epochs or 0, size)
        self.until = min(train.until or self.steps, self.steps)
        self.evaluate_every = self.interval(recipe.evaluate.every, recipe.evaluate.every_epochs)
        self.save_every = self.interval(recipe.checkpoint.every, recipe.checkpoint.every_epochs)

    def train(self, report: Report) -> dict[str, Any]:
        """Train to the end and return the summary of the run. Raises RunError, BadSampleError or StoppedError."""
        self.report, self.started = report, time.perf_counter()
        # A restart of a finished run, for example by a scheduler: nothing to do.
        if (finished := self.earlier_summary()) is not None:
            return finished
        # Fine-tuning must not end with weights worse than those it began with: they are the first checkpoint, and the best one
        # until an evaluation is better.
        if self.needs_start_evaluation() and self.evaluator.start(self.progress, report):
            self.clock.resume()
            self.save(best=True)
        if self.needs_evaluation():  # the run was stopped during it, or is to end at this step
            self.clock.resume()
            self.between_steps()
        batches = self.batches()
        # DDP orders its buckets after its first backward pass. Do that pass now, so that a resumed run sums gradients in the
        # same order as an uninterrupted one.
        if dist.world_size() > 1 and self.progress.step < self.until:
            first = next(batches, None)
            may_continue = self.evaluator.may_continue()  # collective
            if may_continue and first is not None:
                self.passes.arrange_buckets(self.progress.step, first)
            batches = chain([first], batches) if may_continue and first is not None else iter(())
        # The loop. Work other than steps (log lines, evaluations, checkpoints, stops) happens between two of them.
        self.clock.resume()
        for batch in self.clock.time_waits(batches):
            self.train_step(batch)
            self.progress.step += 1
            if self.progress.step == self.until or self.progress.step % self.recipe.report.every == 0:
                self.log()
            self.between_steps()
            if self.progress.step == self.until:  # early stopping may have moved it
                break
        if self.progress.step < self.until:  # loading was cancelled by a stop request
            self.stop()
        # The end: wait for the last checkpoint, since its time belongs to the run.
        self.saver.finish(self.progress, self.report, is_last=True)
        self.count_time()
        summary = summarise(
            self.progress,
            main_metric=self.task.main_metric,
            names=self.task.metric().names,
            epochs=self.stream.epoch(self.progress.step),
            global_batch_size=self.stream.global_batch_size,
            throughput=measure_throughput(self.clock, self.progress.timed_samples, self.device, before=self.before),
            initial=self.initial,
            bad=self.flags.bad,
        )
        for warning in final_warnings(summary):
            self.report.warning(warning)
        return summary

    def earlier_summary(self) -> dict[str, Any] | None:
        """Summary written by the start that made the last step, if no work is left; else None. Collective.

        Its times and peak memory include those of the last checkpoint, which that checkpoint cannot contain.
        """
        if self.progress.step < self.until or self.needs_evaluation():
            return None
        stored = read_summary(self.checkpoints.folder, self.progress) if dist.rank() == 0 else None
        summary: dict[str, Any] | None = dist.broadcast_object(stored)
        return summary

    def batches(self) -> Iterator[ImageBatch]:
        """This rank's share of each global batch, from the current step to the last, or until cancelled."""
        self.passes.replica.train()
        # The loader prefetches: workers are some steps ahead of training.
        with contextlib.suppress(LoadingCancelledError):
            yield from self.loader.batches(self.stream.share(step) for step in range(self.progress.step, self.until))

    def train_step(self, batch: ImageBatch) -> None:
        """One optimizer update from this rank's share of a global batch."""
        step = self.progress.step
        self.heartbeat.beat(step, 'training')
        set_lr(self.optimizer, self.schedule(step))  # a function of the step alone, so resuming needs no state
        # Forward; all-reduce of the weights that the loss is divided by; backward, overlapped with DDP's averaging. The flags
        # of each rank travel with that all-reduce: a step has no other collectives than it, gradients and shared norms.
        with self.temporary_freeze.during(step):
            means, flags = self.passes(step, batch, self.flags.collect())
        # Gradients are complete and equal on all ranks here, so each takes the same step.
        norm = self.precision.step(self.optimizer, partial(clip, self.parameters, self.recipe.clip))
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(self.timeline.ema_share)
        self.numbers.add(step, means, flags, norm)
        self.read_numbers(keep=1)  # not this step's: the host would have to wait for the device

    def read_numbers(self, keep: int) -> None:
        """Check the values of all but the last `keep` steps. All ranks read the same values at the same step."""
        for step, values, norm, flags in self.numbers.read(keep):
            # With fp16, infinite gradients are normal: the step was skipped and the loss scale halved. An infinite loss is not.
            if not math.isfinite(values[-1]) or not (math.isfinite(norm) or self.precision.skips):
                # The last good checkpoint may still be on its way to the disk: the message names it.
                self.saver.finish(self.progress, self.report)
                raise RunError(self.describe_non_finite(step, values))
            if self.progress.has_diverged(values[-1]):
                self.saver.finish(self.progress, self.report)
                raise RunError(self.describe_divergence(step, values[-1]))
            if skipped := self.flags.receive(*flags):
                for why in skipped:
                    self.report.warning(f'skipped: {why}')
                check_bad_samples(self.flags.bad, self.recipe.train.bad_samples)

    def interval(self, steps: int | None, epochs: float | None) -> Length:
        """Length between two evaluations or checkpoints; 0 for none."""
        return Length(steps) if steps else Length(in_steps(epochs or 0, self.steps_per_epoch), self.timeline)

    def needs_start_evaluation(self) -> bool:
        """True if the initial weights are to be evaluated: before step 0, and only if the whole network, heads included, was
        loaded.
        """
        enabled = self.recipe.evaluate.enabled and self.recipe.evaluate.start and self.recipe.train.init_part == 'all'
        return enabled and self.progress.step == 0 and bool(self.initial) and all(loaded.is_whole for loaded in self.initial)

    def needs_evaluation(self) -> bool:
        """True if the model is to be evaluated at the current step and was not yet."""
        is_due = self.progress.step == self.until or self.evaluate_every.is_completed_at(self.progress.step)
        return self.recipe.evaluate.enabled and is_due and self.progress.evaluated != self.progress.step

    def between_steps(self) -> None:
        """Evaluate, checkpoint and honour stop requests between steps. Raises StoppedError."""
        new_best = self.evaluate() if self.needs_evaluation() else False
        # An early stop makes this step the last one, so it comes before the decision about the checkpoint.
        self.stop_early()
        late = self.progress.step == self.started_at  # resumed: the checkpoint of this step was written before its evaluation
        is_due = self.progress.step == self.until or self.save_every.is_completed_at(self.progress.step)
        if is_due or new_best or late or self.flags.stop_agreed:
            self.save(new_best)
        # A stop request at the end changes nothing: the run is complete.
        if self.flags.stop_agreed and (self.progress.step < self.until or self.needs_evaluation()):
            self.saver.finish(self.progress, self.report, is_last=True)
            raise StoppedError(
                f'stopped after step {self.progress.step} of {self.steps}; the same command continues from there'
            )

    def may_cancel_loading(self) -> bool:
        """True if this rank was asked to stop and no other rank waits for it in a step."""
        return self.flags.stop_asked and (dist.world_size() == 1 or self.progress.step == self.started_at)

    def stop(self) -> NoReturn:
        """End the run between two steps, with a checkpoint if it has made any step. Raises StoppedError."""
        self.flags.stop_agreed = True
        if self.progress.step > 0:
            self.between_steps()
        self.saver.finish(self.progress, self.report)
        raise StoppedError('stopped before the first step; the same command starts again')

    def stop_early(self) -> None:
        """Make the current step the last one if `evaluate.patience` evaluations in a row brought no new best."""
        patience = self.recipe.evaluate.patience
        if patience is not None and self.progress.no_better >= patience and self.progress.step < self.until:
            self.until = self.progress.step
            times = pluralize(self.progress.no_better, 'evaluation')
            self.report.note(
                f'stopped early at step {self.progress.step} of {self.steps}: {times} in a row with no better '
                f'{self.task.main_metric} than {format_number(self.progress.best)} at step {self.progress.best_step}'
            )

    def log(self) -> None:
        """Report one log line, and a finished checkpoint."""
        self.read_numbers(keep=0)
        self.saver.poll(self.progress, self.report)
        self.report.train(self.log_line())
        if (warning := self.clock.data_wait_warning()) is not None:
            self.report.warning(warning)

    def log_line(self) -> dict[str, Any]:
        """Values of a log line: losses are means over the steps since the last one."""
        seconds, waited = self.clock.lap()
        steps, means = self.numbers.means()
        step, scale = self.progress.step, self.precision.scale
        return {
            'step': step,
            'epoch': self.stream.epoch(step),
            'loss': means[-1],
            **{f'loss/{name}': value for name, value in zip(self.with_loss.names, means, strict=False)},
            'lr': self.schedule(step - 1),
            'samples_per_s': steps * self.stream.global_batch_size / seconds,
            'data_wait': waited / seconds,
            **self.bucket_meter.lap(seconds),
            'memory_mb': peak_memory_mb(self.device),
            **({'loss_scale': scale} if scale is not None else {}),
        }

    def describe_non_finite(self, step: int, values: Sequence[float]) -> str:
        """Message for ending the run at `step`, whose terms and total are `values`. Collective."""
        terms = ', '.join(f'{name} = {value}' for name, value in zip(self.with_loss.names, values, strict=False))
        # Samples of all ranks: the fault may be in the share of any.
        indices = dist.gather_objects([draw.index for draw in self.stream.share(step)])
        names = [self.dataset.name(index) for share in indices for index in share]
        listed = ', '.join(names[:16]) + (f' and {len(names) - 16} more' if len(names) > 16 else '')
        what = 'the loss is' if not math.isfinite(values[-1]) else 'the loss is finite but its gradients are'
        return (
            f'{what} not finite at step {step} ({terms}; learning rate {self.schedule(step):.3g}); '
            f'samples of that step: {listed}; last good checkpoint: {self.saver.newest()}; '
            'try a lower optimizer.lr, a longer schedule.warmup_steps, clip.norm, or precision.dtype=fp32'
        )

    def describe_divergence(self, step: int, loss: float) -> str:
        """Message for ending the run at `step`, since the loss has not come back from a rise by orders of magnitude."""
        lr, first = self.schedule(step), self.progress.first_loss or 0.0
        tuned = ', or keep more of the initial weights: norm_sync=frozen, train.freeze' if self.recipe.train.init_from else ''
        best = f', best so far: step {self.progress.best_step}' if self.progress.best is not None else ''
        return (
            f'the training has diverged: the loss was {first:.3g} at step 0, rose to at least {DIVERGENCE} times that, and is '
            f'{loss:.3g} at step {step}, after {RECOVERY} steps; the learning rate, {lr:.3g}, is probably too high: '
            f'start again with --fresh and a lower optimizer.lr ({self.lr / 10:.1g}), a longer schedule.warmup_steps, or '
            f'clip.norm{tuned} (newest checkpoint: {self.saver.newest()}{best})'
        )

    def evaluate(self) -> bool:
        """Evaluate the current model; True if it is the best so far."""
        self.clock.pause()
        self.read_numbers(keep=0)
        best = self.evaluator.step(
            self.progress, self.report, every=self.evaluate_every, is_last=self.progress.step == self.until
        )
        self.clock.resume()
        return best

    def save(self, best: bool = False) -> None:
        """Start to write a checkpoint of the current step."""
        self.clock.pause()
        self.heartbeat.beat(self.progress.step, 'saving')
        self.read_numbers(keep=0)  # a step whose loss is not finite must not be saved
        self.evaluator.agree_on_statistics()
        self.count_time()
        self.saver.begin(self.progress, best, self.report)
        self.clock.resume()

    def restore(self, loaded: LoadedCheckpoint) -> None:
        """Load weights and state of the checkpoint whose progress this run was built with.

        Raises RunError if it belongs to another network or a run with other parts.
        """
        self.saver.restore(loaded)
        norms.mark_folded(self.model)
        self.stop_early()

    def count_time(self) -> None:
        """Update the times of the run: those of earlier starts and of this one so far."""
        # Seconds are those of this rank; the main rank's go into the checkpoint.
        progress, before, clock = self.progress, self.before, self.clock
        progress.seconds = before.seconds + time.perf_counter() - self.started
        progress.training_seconds = before.training_seconds + clock.total_seconds + clock.seconds
        progress.waiting_seconds = before.waiting_seconds + clock.total_waited + clock.waited
        progress.timed_samples = before.timed_samples + (progress.step - self.started_at) * self.stream.global_batch_size
        progress.peak_memory_mb = max(before.peak_memory_mb, peak_memory_mb(self.device))
