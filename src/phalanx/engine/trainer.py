"""Trains any Task: this file is the training run, read from top to bottom."""

import math
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic

import torch
from torch import nn

from phalanx.data import cache
from phalanx.engine import account
from phalanx.engine.ema import Ema
from phalanx.engine.evaluation import Setup
from phalanx.engine.evaluator import Evaluator
from phalanx.engine.loader import Stream, check_bad
from phalanx.engine.meters import StepNumbers, Stopwatch
from phalanx.engine.news import News
from phalanx.engine.optim.clip import clip
from phalanx.engine.optim.frozen import FrozenAtFirst, freeze
from phalanx.engine.optim.groups import parameter_groups
from phalanx.engine.optim.optimizers import set_lr
from phalanx.engine.optim.scaling import scaled
from phalanx.engine.optim.schedule import in_steps
from phalanx.engine.passes import NetworkWithLoss, Passes
from phalanx.engine.runs import load_initial
from phalanx.engine.saving import Saver
from phalanx.engine.schema import Recipe
from phalanx.engine.standing import Standing
from phalanx.families.task import B, P, S, Task
from phalanx.nn.precision import Precision
from phalanx.parallel import dist, norms
from phalanx.parallel.heartbeat import Heartbeat
from phalanx.parallel.step import WholeStep
from phalanx.report.readable import counted, number
from phalanx.report.report import Report
from phalanx.system.errors import RunError, StoppedError
from phalanx.weights.checkpoint import Checkpoints, Loaded


class Trainer(Generic[S, B, P]):
    """One run of one task on this rank: the same code with one rank and with many."""

    def __init__(
        self, recipe: Recipe, task: Task[S, B, P], *, folder: Path, device: torch.device, from_checkpoint: bool = False
    ) -> None:
        """With `from_checkpoint`, all weights are about to come from there: those that the recipe starts from are not read."""
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
        self.initial = [] if from_checkpoint else load_initial(self.model, recipe, task)
        # For the report: what is odd about the data, and what of the initial weights was not taken.
        self.notes = [*self.dataset.notes, *self.evalset.notes, *(note for taken in self.initial for note in taken.notes)]
        if train.freeze_steps is None:
            freeze(self.model, train.freeze)
        self.model.to(device)
        if train.channels_last:
            self.model.to(memory_format=torch.channels_last)
        statistics = norms.synchronise(self.model, recipe.norm_sync, dist.node_group() if recipe.norm_sync == 'node' else None)
        self.at_first = FrozenAtFirst(self.model, train.freeze, train.freeze_steps or 0)

        # What moves it.
        groups = parameter_groups(self.model, recipe.parameters)
        self.optimizer = recipe.optimizer(groups)
        self.lr = scaled(self.optimizer.defaults['lr'], recipe.scaling, batch)
        self.schedule = recipe.schedule(self.lr, self.steps, self.steps_per_epoch)
        self.ema = Ema(self.model, recipe.ema) if recipe.ema else None
        self.notes += self.ema.notes(self.steps) if self.ema else []

        # Its passes, forward and backward.
        self.precision = Precision(recipe.precision, device)
        torch.backends.cudnn.benchmark = task.has_fixed_size  # else every new size would be a search for the fastest kernels
        options = train.compile_options(device.type)
        network: nn.Module = self.model if options is None else torch.compile(self.model, **options)  # type: ignore[call-overload]
        self.with_loss = NetworkWithLoss(task, network, WholeStep(samples=batch, epochs=self.steps / self.steps_per_epoch))
        self.passes = Passes(self.with_loss, self.stream, self.precision, statistics, recipe.gradients, device)

        # Where it stands, and what it reads and writes.
        self.at, self.started_at = Standing(), 0
        self.checkpoints = Checkpoints(folder, keep=recipe.checkpoint.keep)
        parts = self.model, self.optimizer, self.precision, self.ema, self.passes.compression
        self.saver = Saver(self.checkpoints, *parts, asynchronous=recipe.checkpoint.asynchronous)
        setup = Setup(recipe, device, self.precision, cache.of_node(train.cache))
        self.loader = setup.loader(task, self.dataset, replace=True)
        self.news = News(self.loader)
        self.heartbeat = Heartbeat(dist.rank())
        about = self.model, self.ema, setup, self.heartbeat, self.news, self.with_loss.whole
        self.evaluator = Evaluator(task, self.evalset, *about)
        self.clock = Stopwatch()
        self.numbers = StepNumbers()
        self.report = Report(folder, main=False, name='', total_steps=self.until)  # a silent one, until `train` gets another

    def train(self, report: Report) -> dict[str, Any]:
        """The summary of the run, after training to the end. Raises RunError, BadSampleError or StoppedError."""
        self.report = report
        started = time.perf_counter()
        if self.owes_start():
            self.evaluator.start(self.at, report)
        if self.owes_evaluation():  # the run was stopped in the middle of it, or is wanted to end here
            self.clock.go_on()
            self.between_steps()
        batches = self.clock.waiting(self.batches())
        if dist.world_size() > 1 and self.at.step < self.until:
            first = next(batches)
            self.passes.arrange_buckets(self.at.step, first)
            batches = chain([first], batches)
        self.clock.go_on()
        for batch in batches:
            self.train_step(batch)
            self.at.step += 1
            if self.at.step == self.until or self.due(self.recipe.report.every):
                self.log()
            self.between_steps()
            if self.at.step == self.until:  # which an evaluation may have brought forward
                break
        self.saver.end(self.at, self.report, is_last=True)
        summary = account.summary(self, time.perf_counter() - started)
        for warning in account.remarks(summary):
            self.report.warning(warning)
        return summary

    def batches(self) -> Iterator[B]:
        """This rank's share of each global batch, from the step reached so far to the last."""
        self.passes.replica.train()
        return self.loader.batches(self.stream.share(step) for step in range(self.at.step, self.until))

    def train_step(self, batch: B) -> None:
        """One optimizer update from the share of this rank in a global batch."""
        step = self.at.step
        self.heartbeat.beat(step, 'training')
        set_lr(self.optimizer, self.schedule(step))  # a function of the step alone, so a resume needs no state of it
        # Forward, the sums over ranks that the loss is divided by, backward; DDP averages gradients meanwhile. The sums carry
        # the news of each rank, so a step has no exchange besides them, gradients and shared norms.
        with self.at_first.during(step):
            means, news = self.passes(step, batch, self.news.own())
        norm = self.precision.step(self.optimizer, partial(clip, self.model.parameters(), self.recipe.clip))
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update()
        self.numbers.add(step, means, news, norm)
        self.read_numbers(keep=1)  # this step's are on their way: for those the host would have to wait for the device

    def read_numbers(self, keep: int) -> None:
        """Reads the numbers of all but the last `keep` steps. All ranks read the same numbers at the same step."""
        for step, values, norm, news in self.numbers.read(keep):
            if not math.isfinite(values[-1]) or not (math.isfinite(norm) or self.precision.skips):
                self.saver.end(self.at, self.report)
                raise RunError(account.not_finite(self, step, values))
            if skipped := self.news.hear(*news):
                for why in skipped:
                    self.report.warning(f'skipped: {why}')
                check_bad(self.news.bad, self.recipe.train.bad_samples)

    def due(self, every: int) -> bool:
        """Whether the step reached is a multiple of `every`."""
        return every > 0 and self.at.step % every == 0

    def owes_start(self) -> bool:
        """Whether the weights that this run begins with are to be evaluated: anything is better than a fresh head."""
        wanted = self.recipe.evaluate.enabled and self.recipe.evaluate.start and self.recipe.train.init_part == 'all'
        return wanted and self.at.step == 0 and bool(self.initial) and all(taken.is_whole for taken in self.initial)

    def owes_evaluation(self) -> bool:
        """Whether the model has to be evaluated as it is now, and was not yet."""
        wanted = self.at.step == self.until or self.due(self.evaluate_every)
        return self.recipe.evaluate.enabled and wanted and self.at.evaluated != self.at.step

    def between_steps(self) -> None:
        """What may come after a step: an evaluation, a checkpoint, the end when it was asked for (StoppedError)."""
        new_best = self.evaluate() if self.owes_evaluation() else False
        self.stop_early()
        late = self.at.step == self.started_at  # the checkpoint of this step was written before its evaluation
        if self.at.step == self.until or new_best or late or self.news.stop_agreed or self.due(self.save_every):
            self.save(new_best)
        if self.news.stop_agreed and (self.at.step < self.until or self.owes_evaluation()):
            self.saver.end(self.at, self.report, is_last=True)
            raise StoppedError(f'stopped after step {self.at.step} of {self.steps}; the same command goes on from there')

    def stop_early(self) -> None:
        """Makes the step reached the last one when as many evaluations as the recipe allows were no better than the best."""
        patience = self.recipe.evaluate.patience
        if patience is not None and self.at.no_better >= patience and self.at.step < self.until:
            self.until = self.at.step
            times = counted(self.at.no_better, 'evaluation')
            self.report.note(
                f'stopped early at step {self.at.step} of {self.steps}: {times} in a row with no better '
                f'{self.task.main_metric} than {number(self.at.best)} at step {self.at.best_step}'
            )

    def log(self) -> None:
        """One line of the log: losses averaged over the steps since the last one."""
        self.read_numbers(keep=0)
        self.saver.look(self.at, self.report)
        self.report.train(account.log_line(self))
        if (warning := self.clock.long_wait()) is not None:
            self.report.warning(warning)

    def evaluate(self) -> bool:
        """Evaluates the model as it is now; whether it is the best so far."""
        self.clock.pause()
        self.read_numbers(keep=0)
        best = self.evaluator.step(self.at, self.report, every=self.evaluate_every, is_last=self.at.step == self.until)
        self.clock.go_on()
        return best

    def save(self, best: bool = False) -> None:
        """Begins to write a checkpoint of the step reached."""
        self.clock.pause()
        self.heartbeat.beat(self.at.step, 'saving')
        self.read_numbers(keep=0)  # a step whose loss is not finite must not be saved
        self.evaluator.agree_on_statistics()
        self.saver.begin(self.at, best, self.report)
        self.clock.go_on()

    def restore(self, loaded: Loaded) -> None:
        """Goes back to a checkpoint. Raises RunError when it is of another network or of a run with other parts."""
        self.at, self.started_at = self.saver.restore(loaded), loaded.step
        norms.keep_folded(self.model)
        self.stop_early()
