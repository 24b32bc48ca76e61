"""Trains any Task: this file is the training run, read from top to bottom."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor, nn

from phalanx import cache, dist, norms, stochastic
from phalanx.checkpoint import Checkpoints, Loaded, Saving
from phalanx.config.schema import Recipe
from phalanx.convert.weights import load_weights
from phalanx.ema import Ema
from phalanx.evaluation import EvaluationStoppedError, evaluate
from phalanx.gradients import replicated
from phalanx.heartbeat import Heart
from phalanx.loader import Loader, Stream, check_bad
from phalanx.memory import parked, to_device
from phalanx.meters import Later, Stopwatch, peak_memory_mb, slower_ranks
from phalanx.optim.clip import clip
from phalanx.optim.groups import parameter_groups
from phalanx.optim.optimizers import set_lr, take_state
from phalanx.optim.scaling import scaled
from phalanx.optim.schedule import in_steps
from phalanx.precision import Precision, at_least_float32
from phalanx.report import Report
from phalanx.step import WholeStep
from phalanx.task import B, Draw, P, S, SampleError, Task


class RunError(Exception):
    """The run cannot go on; the message says at which step, why, and what is left."""


class StoppedError(Exception):
    """The user (or a scheduler) asked the run to stop; a checkpoint of the step it reached is on disk."""


class Trainer(Generic[S, B, P]):
    """One run of one task on this rank: the same code with one rank and with many."""

    def __init__(self, recipe: Recipe, task: Task[S, B, P], *, folder: Path, device: torch.device) -> None:
        self.recipe, self.task, self.device = recipe, task, device
        train = recipe.train

        # How much, in steps: below this paragraph only steps exist.
        self.dataset, self.evalset = task.dataset('train'), task.dataset('eval')
        batch = train.global_batch(dist.world_size())
        self.stream = Stream(len(self.dataset), batch, train.micro_batches, train.seed, dist.rank(), dist.world_size())
        self.steps_per_epoch = len(self.dataset) / batch
        self.steps = train.steps or in_steps(train.epochs or 0, self.steps_per_epoch)
        self.until = min(train.until or self.steps, self.steps)
        self.evaluate_every = recipe.evaluate.every or in_steps(recipe.evaluate.every_epochs or 0, self.steps_per_epoch)
        self.save_every = recipe.checkpoint.every or in_steps(recipe.checkpoint.every_epochs or 0, self.steps_per_epoch)

        # The network. Every rank draws the same initial weights.
        torch.manual_seed(train.seed)
        self.model = task.model()
        # For the report: what is odd about the data, and what of the initial weights was not taken.
        self.notes = [*self.dataset.notes, *self.evalset.notes]
        self.take_initial_weights()
        self.model.to(device)
        if train.channels_last:
            self.model.to(memory_format=torch.channels_last)
        self.whole = WholeStep()
        self.node = dist.node_group() if recipe.norm_sync == 'node' or recipe.gradients.local_steps > 1 else None
        alone = dist.group_size(self.node) == dist.world_size()  # one machine has nobody to meet
        self.gradients = replace(recipe.gradients, local_steps=1) if alone else recipe.gradients
        norms.settle(self.model, recipe.norm_sync, self.whole, self.node)
        self.is_random = stochastic.tie(self.model, self.whole)
        network: nn.Module = torch.compile(self.model) if train.compile else self.model  # type: ignore[assignment]
        self.judge = _Judge(task, network, self.whole, device)
        self.replica, self.compression = replicated(self.judge, self.gradients, lambda: self.whole.ranks)

        # What moves it.
        groups, _ = parameter_groups(self.model, recipe.parameters)
        self.optimizer = recipe.optimizer(groups)
        self.lr = scaled(self.optimizer.defaults['lr'], recipe.scaling, batch)
        self.schedule = recipe.schedule(self.lr, self.steps, self.steps_per_epoch)
        self.precision = Precision(recipe.precision, device)
        self.ema = Ema(self.model, recipe.ema) if recipe.ema else None
        self.notes += self.ema.notes(self.steps) if self.ema else []

        # Where it stands.
        self.step = self.started_at = 0
        self.best: float | None = None
        self.best_step = 0
        self.last_metrics: dict[str, float] = {}
        self.evaluated = 0  # the step of `last_metrics`
        self.checkpoints = Checkpoints(folder, keep=recipe.checkpoint.keep)
        self.saving: Saving | None = None  # the checkpoint that is being written while training goes on
        self.cache = cache.of_machine(train.cache)
        self.loader = Loader(
            self.dataset,
            task.collate,
            workers=train.workers,
            bad_samples=train.bad_samples,
            device=device,
            replace=True,
            cache=self.cache,
        )
        self.clock = Stopwatch()
        self.heart = Heart(dist.rank())
        self.stop_asked = False  # set by a signal on any rank; all ranks leave at the same step
        self.stop_agreed = False
        self.apart: list[Tensor] = []  # numbers of this rank from the local steps since its machine met the others
        self.unread: list[tuple[int, Later]] = []  # numbers of the last steps that are still on their way to the host
        self.logged: list[list[float]] = []  # numbers of the steps since the last log line: terms, total
        self.bad: dict[int, str] = {}  # samples skipped so far, over all ranks
        self.told = self.shared = 0  # how many of its own this rank has told the others to be there, and has sent them

    def take_initial_weights(self) -> None:
        """Fills the network from the files that the recipe names. Raises CheckpointError when one does not fit."""
        train = self.recipe.train
        if train.init_from is not None:
            self.notes += load_weights(self.model, train.init_from, part=train.init_part, misshapen=train.init_misshapen)
        for name, path in (train.init_networks or {}).items():
            self.notes += load_weights(self.model, path, misshapen=train.init_misshapen, network=name)

    def train(self, report: Report) -> dict[str, Any]:
        """The summary of the run, after training to the end. Raises RunError, BadSampleError or StoppedError."""
        self.report = report
        started = time.perf_counter()
        if dist.rank() == 0:
            self.checkpoints.remove_leftovers()
        if self.owes_evaluation():  # the run was stopped in the middle of it, or is wanted to end here
            self.clock.go_on()
            self.between_steps()
        batches = self.clock.waiting(self.batches())
        if dist.world_size() > 1 and self.step < self.until:
            first = next(batches)
            self.settle_buckets(first)
            batches = chain([first], batches)
        self.clock.go_on()
        for micro_batches in batches:
            self.train_step(micro_batches)
            self.step += 1
            if self.step == self.until or self.due(self.recipe.report.every):
                self.log()
            if not self.apart:
                self.between_steps()
        self.end_save(is_last=True)
        summary = self.summary(time.perf_counter() - started)
        for rank in summary['slow_ranks']:
            self.report.warning(rank)
        return summary

    def batches(self) -> Iterator[list[B]]:
        """The micro-batches of this rank, one list a step, from the step reached so far to the last."""
        loaded = self.loader.batches(chain.from_iterable(self.stream.share(step) for step in range(self.step, self.until)))
        while held := list(islice(loaded, self.recipe.train.micro_batches)):
            yield held

    def settle_buckets(self, micro_batches: Sequence[B]) -> None:
        """Makes DDP arrange its buckets now, by one backward pass that is thrown away.

        It arranges them after the first pass, and the order of a sum over three ranks or more depends on it: a resumed run
        would differ from an uninterrupted one in the last bits of its first step.
        """
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        self.replica.train()
        with self.compression.off() if self.compression else contextlib.nullcontext():
            with self.precision.autocast():
                totals, _ = self.replica([batch.to(self.device) for batch in micro_batches], self.sample_keys())
            totals.sum().backward()
        self.optimizer.zero_grad()
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers[name])

    def train_step(self, micro_batches: Sequence[B]) -> None:
        """One optimizer update from the micro-batches that this rank holds of one global batch."""
        self.heart.beat(self.step, 'training')
        self.replica.train()
        set_lr(self.optimizer, self.schedule(self.step))
        is_local = self.gradients.is_local(self.step)
        self.whole.ranks = self.node if is_local else None
        moved = [batch.to(self.device) for batch in micro_batches]
        with self.precision.autocast():
            totals, weights = self.replica(moved, self.sample_keys())  # [terms] each: what this rank judged
        own = torch.cat([totals.detach(), weights, to_device(torch.tensor(self.news(), dtype=totals.dtype), self.device)])
        numbers = dist.sum_over_ranks(own, self.whole.ranks)  # the one exchange of a step besides gradients and norms
        whole = numbers[len(totals) : 2 * len(totals)]
        ranks = dist.group_size(self.whole.ranks)
        self.precision.backward((totals / whole).sum() * ranks)  # DDP averages over ranks, hence their number
        norm = self.precision.step(self.optimizer, partial(clip, self.model.parameters(), self.recipe.clip))
        self.optimizer.zero_grad(set_to_none=True)
        if not is_local:
            self.end_step(self.step, torch.cat([numbers, norm[None]]))
            self.read_numbers(keep=1)  # those of the step before: reading this one's would make the device wait
            return
        self.apart.append(torch.cat([own, norm[None]]))
        if self.gradients.meets_after(self.step + 1) or self.step + 1 == self.steps:
            self.meet()

    def meet(self) -> None:
        """Ends the local steps of all machines, which then are the same again: in weights, norms and optimizers.

        Averaging the momentum, too, is the method of Yu, Jin & Yang (ICML 2019); Lin et al. (2020) leave each machine its own.
        So one rank's checkpoint is that of all, and a resumed run equal to an uninterrupted one.
        """
        remembered = [value for state in self.optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
        weights = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        statistics = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        dist.average_many_over_ranks([*weights, *statistics, *remembered])
        first = self.step + 1 - len(self.apart)
        for step, numbers in enumerate(dist.sum_over_ranks(torch.stack(self.apart)), first):
            self.end_step(step, numbers)
        self.apart = []
        self.read_numbers(keep=0)

    def end_step(self, step: int, numbers: Tensor) -> None:
        """Lets the moving average follow, and sends the numbers of all ranks, totals and weights first, to the host."""
        if self.ema is not None:
            self.ema.update(self.model)
        terms = len(self.judge.names)
        values = numbers[:terms] / numbers[terms : 2 * terms]
        self.unread.append((step, Later(torch.cat([values, values.sum()[None], numbers[2 * terms :]]))))

    def sample_keys(self) -> list[Tensor]:
        """For each micro-batch, the keys [B] of the random numbers that its samples meet inside the network, if it has any."""
        if not self.is_random:
            return []
        return [
            to_device(
                stochastic.sample_keys(self.stream.seed, self.step, torch.tensor([draw.index for draw in draws])), self.device
            )
            for draws in self.stream.share(self.step)
        ]

    def news(self) -> list[float]:
        """What this rank tells the others along with its losses: whether it was asked to stop, and how many new bad samples."""
        new, self.told = len(self.loader.bad) - self.told, len(self.loader.bad)
        return [float(self.stop_asked), float(new)]

    def read_numbers(self, keep: int) -> None:
        """Reads the numbers of all but the last `keep` steps. All ranks read the same numbers at the same step."""
        while len(self.unread) > keep:
            step, later = self.unread.pop(0)
            *values, stop, new_bad, norm = later.read()
            if not math.isfinite(values[-1]) or not (math.isfinite(norm) or self.precision.skips):
                raise RunError(self.non_finite(step, values))
            self.logged.append(values)
            self.stop_agreed |= stop > 0
            if new_bad:
                self.share_bad()

    def non_finite(self, step: int, values: Sequence[float]) -> str:
        terms = ', '.join(f'{name} = {value}' for name, value in zip(self.judge.names, values, strict=False))
        drawn = dist.gather_objects([draw.index for micro_batch in self.stream.share(step) for draw in micro_batch])
        names = [self.dataset.name(index) for share in drawn for index in share]
        shown = ', '.join(names[:16]) + (f' and {len(names) - 16} more' if len(names) > 16 else '')
        self.end_save()
        last = self.checkpoints.all()
        what = 'the loss is' if not math.isfinite(values[-1]) else 'the loss is finite but its gradients are'
        return (
            f'{what} not finite at step {step} ({terms}; learning rate {self.schedule(step):.3g}); '
            f'samples of that step: {shown}; '
            f'last good checkpoint: {last[-1] if last else "none was written yet"}; '
            'try a lower optimizer.lr, a longer schedule.warmup_steps, clip.norm, or precision.dtype=fp32'
        )

    def share_bad(self) -> None:
        """Brings together what each rank could not read since the last time; ends the run when the recipe allows less."""
        own = dict(islice(self.loader.bad.items(), self.shared, None))
        self.shared += len(own)
        found = {index: why for share in dist.gather_objects(own) for index, why in share.items()}
        for why in dict.fromkeys(found[index] for index in sorted(found)):
            if why not in self.bad.values():
                self.report.warning(f'skipped: {why}')
        self.bad |= found
        check_bad(self.bad, self.recipe.train.bad_samples)

    def due(self, every: int) -> bool:
        """Whether a multiple of `every` was reached; among local steps that is so when the machines have met after it."""
        return every > 0 and not self.apart and self.step // every > self.gradients.met_before(self.step) // every

    def owes_evaluation(self) -> bool:
        """Whether the model has to be judged as it is now, and was not yet."""
        wanted = self.step == self.until or self.due(self.evaluate_every)
        return self.recipe.evaluate.enabled and wanted and self.evaluated != self.step

    def between_steps(self) -> None:
        """What may come after a step: an evaluation, a checkpoint, the end when it was asked for (StoppedError)."""
        new_best = self.evaluate() if self.owes_evaluation() else False
        late = self.step == self.started_at  # the checkpoint of this step was written before its evaluation
        if self.step == self.until or new_best or late or self.stop_agreed or self.due(self.save_every):
            self.save(new_best)
        if self.stop_agreed and (self.step < self.until or self.owes_evaluation()):
            self.end_save(is_last=True)
            raise StoppedError(f'stopped after step {self.step} of {self.steps}; the same command goes on from there')

    def log(self) -> None:
        """One line of the log: losses averaged over the steps since the last one."""
        self.read_numbers(keep=0)
        if self.saving is not None and self.saving.is_over():
            self.end_save()
        seconds, waited = self.clock.lap()
        if (told := self.clock.long_wait()) is not None:
            self.report.warning(told)
        steps = len(self.logged)
        means = [math.fsum(column) / steps for column in zip(*self.logged, strict=True)]
        self.logged = []
        self.report.train(
            {
                'step': self.step,
                'epoch': self.stream.epoch(self.step),
                'loss': means[-1],
                **{f'loss/{name}': value for name, value in zip(self.judge.names, means, strict=False)},
                'lr': self.schedule(self.step - 1),
                'samples_per_s': steps * self.stream.global_batch_size / seconds,
                'data_wait': waited / seconds,
                'memory_mb': peak_memory_mb(self.device),
                **({'loss_scale': self.precision.scale} if self.precision.scale is not None else {}),
            }
        )

    @torch.no_grad()
    def evaluate(self) -> bool:
        """Judges the model on every evaluation sample, each exactly once over all ranks; whether it is the best so far.

        Nothing comes of an evaluation during which the run is asked to stop: who goes on begins with it.
        """
        self.clock.pause()
        self.read_numbers(keep=0)
        recipe = self.recipe
        self.agree_on_statistics()
        with self.ema.applied(self.model) if self.ema else contextlib.nullcontext():
            try:
                judged = evaluate(
                    self.task,
                    self.model,
                    device=self.device,
                    batch_size=recipe.evaluate.batch_size,
                    workers=recipe.train.workers,
                    seed=recipe.train.seed,
                    bad_samples=recipe.train.bad_samples,
                    autocast=self.precision.autocast(),
                    cache=self.cache,
                    goes_on=self.evaluation_goes_on,
                )
            except EvaluationStoppedError:
                self.clock.go_on()
                return False
            if dist.rank() == 0:
                self.show_samples()
        for why in judged.missed.values():
            self.report.warning(f'not evaluated: {why}')
        for rank in judged.slow:
            self.report.warning(rank)
        self.last_metrics, self.evaluated = judged.metrics, self.step
        value = judged.metrics[self.task.judged_by]
        best = self.best is None or value > self.best
        if best:
            self.best, self.best_step = value, self.step
        self.report.evaluation(
            self.step,
            judged.metrics,
            judged.table,
            seconds=judged.seconds,
            samples=judged.samples,
            best=best,
            figures=judged.figures,
        )
        self.clock.go_on()
        return best

    def agree_on_statistics(self) -> None:
        """Where norms are not those of the step, gives all ranks the mean of theirs: one model is judged, and saved."""
        if self.recipe.norm_sync in ('node', 'off'):
            names = [name for name, buffer in self.model.named_buffers() if buffer.is_floating_point()]
            averaged = self.ema.averages(names) if self.ema else []
            dist.average_many_over_ranks([*map(self.model.get_buffer, names), *averaged])

    def evaluation_goes_on(self) -> bool:
        """Between two batches of an evaluation; the ranks agree, over the host, since the device has other things to do."""
        self.heart.beat(self.step, 'evaluating')
        self.stop_agreed |= bool(dist.sum_over_ranks(torch.tensor(float(self.stop_asked))))
        return not self.stop_agreed

    def show_samples(self) -> None:
        """Pictures of the first evaluation samples for the report. On the main rank alone: no exchange may happen in here."""
        rows = []
        for draw in [
            Draw(index, 0, 0, self.recipe.train.seed) for index in range(min(self.recipe.report.pictures, len(self.evalset)))
        ]:
            try:
                sample = self.evalset[draw]
            except SampleError:  # the evaluation has told it
                continue
            batch = self.task.collate([sample]).to(self.device)
            result = self.task.results(self.task.predict(self.model, batch), batch)[0]
            rows.append(self.task.picture(sample, result))
        self.report.pictures(rows)

    def save(self, best: bool = False) -> None:
        """Begins to write a checkpoint, on the main rank: it takes a copy, and training goes on while that is written.

        Unless the recipe has it wait, and with it all ranks, which meet in the next step.
        """
        self.clock.pause()
        self.heart.beat(self.step, 'saving')
        self.read_numbers(keep=0)  # a step whose loss is not finite must not be saved
        self.agree_on_statistics()
        state = self.state()
        if dist.rank() == 0:
            self.end_save()
            averaged = self.ema.weights(self.model) if self.ema else None
            self.saving = self.checkpoints.begin(self.step, self.model.state_dict(), averaged, state, best)
            if not self.recipe.checkpoint.asynchronous:
                self.saving.settle()
        self.clock.go_on()

    def end_save(self, is_last: bool = False) -> None:
        """Waits for the checkpoint that is being written, if there is one.

        A disk that is full costs this checkpoint, not the run; but when it is the last one, raises RunError.
        """
        saving, self.saving = self.saving, None
        if saving is None:
            return
        try:
            path, seconds = saving.wait()
            self.report.saved(saving.step, path, seconds)
        except OSError as error:
            kept = self.checkpoints.all()
            self.report.warning(
                f'the checkpoint of step {saving.step} was not written '
                f'({error.strerror}: {error.filename or self.checkpoints.root}); '
                f'the newest on disk is {kept[-1] if kept else "none"}'
            )
            if is_last:
                raise RunError(f'the last checkpoint, of step {saving.step}, could not be written: {error}') from None

    def state(self) -> dict[str, Any]:
        """All that the next step depends on besides the weights: tensors and numbers. Random numbers need no state.

        All ranks take part; the main rank has it.
        """
        return {
            'step': self.step,
            'best': self.best,
            'best_step': self.best_step,
            'metrics': self.last_metrics,
            'evaluated': self.evaluated,
            'optimizer': self.optimizer.state_dict(),
            'precision': self.precision.state(),
            'ema': self.ema.state() if self.ema else None,
            'compression': self.compression.state() if self.compression else None,
        }

    def restore(self, loaded: Loaded) -> None:
        """Goes back to a checkpoint. Raises RunError when it is of another network or of a run with other parts."""
        try:
            self.model.load_state_dict(loaded.model)
            take_state(self.optimizer, loaded.state['optimizer'])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise RunError(f'{loaded.path} does not fit this recipe: {error}') from None
        self.precision.restore(loaded.state['precision'])
        if self.ema is not None:
            if loaded.state['ema'] is None:
                raise RunError(f'{loaded.path} holds no moving average; take `ema` out of the recipe, or start anew')
            self.ema.restore(loaded.state['ema'])
        if self.compression is not None:
            self.compression.restore(loaded.state.get('compression'))  # not there before 2026-11-21
        self.step = self.started_at = loaded.step
        self.best, self.best_step = loaded.state['best'], loaded.state['best_step']
        self.last_metrics = loaded.state['metrics']
        # Checkpoints of before 2026-11-21 do not say it; evaluations were never cut short then.
        self.evaluated = loaded.state.get('evaluated', self.step if self.last_metrics else 0)

    def summary(self, seconds: float) -> dict[str, Any]:
        """What a run comes to, the same on all ranks; throughput counts training alone, `seconds` everything."""
        ranks = dist.gather_objects(
            {'memory_mb': peak_memory_mb(self.device), 'seconds': self.clock.total_seconds, 'waited': self.clock.total_waited}
        )
        trained = max(rank['seconds'] for rank in ranks)
        steps_here = self.step - self.started_at
        return {
            'metrics': self.last_metrics,
            'judged_by': self.task.judged_by,
            'best': self.best,
            'best_step': self.best_step,
            'steps': self.step,
            'epochs': self.stream.epoch(self.step),
            'global_batch_size': self.stream.global_batch_size,
            'world_size': dist.world_size(),
            'seconds': seconds,
            'samples_per_s': steps_here * self.stream.global_batch_size / trained if trained else None,
            'data_wait': sum(rank['waited'] for rank in ranks) / sum(rank['seconds'] for rank in ranks) if trained else None,
            'peak_memory_mb': max(rank['memory_mb'] for rank in ranks),
            'slow_ranks': slower_ranks(
                [{'waiting for data': rank['waited'], 'training': rank['seconds'] - rank['waited']} for rank in ranks]
            ),
            'skipped_samples': sorted(set(self.bad.values())),
        }


class _Judge(nn.Module, Generic[B]):
    """The network with its loss: what DDP wraps, so that a task may call its network as it likes."""

    def __init__(self, task: Task[Any, B, Any], network: nn.Module, whole: WholeStep, device: torch.device) -> None:
        super().__init__()
        self.task, self.network, self.whole = task, network, whole
        # On CUDA, activations of several micro-batches wait for the backward pass in host memory: that is what saves memory.
        self.within = partial(parked, device) if device.type == 'cuda' else contextlib.nullcontext
        self.names: tuple[str, ...] = ()

    def forward(self, micro_batches: Sequence[B], keys: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Totals and weights of the loss terms over the micro-batches of this rank, [terms] each, in float32 or better."""
        passes = [partial(self.task.loss, self.network, batch, self.whole) for batch in micro_batches]
        losses = self.whole.run(passes, keys, self.within)
        self.names = tuple(losses[0])
        totals, weights = (
            torch.stack([torch.stack([at_least_float32(loss[name][part]) for loss in losses]).sum(0) for name in self.names])
            for part in (0, 1)
        )
        return totals, weights.detach()
