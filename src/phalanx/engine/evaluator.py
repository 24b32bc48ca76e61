"""Evaluations during a run: which weights to evaluate, and the use of the results."""

import contextlib
import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from phalanx.data.samples import Dataset
from phalanx.engine.ema import Ema
from phalanx.engine.evaluation import (
    EvaluationStoppedError,
    SampleRenderer,
    Setup,
    add_worst_pictures,
    evaluate,
    render_pictures,
)
from phalanx.engine.loader import LoadingCancelledError
from phalanx.engine.progress import Progress
from phalanx.engine.step_flags import StepFlags
from phalanx.engine.timeline import Length
from phalanx.engine.validation import validation_loss
from phalanx.families.task import Task
from phalanx.parallel import dist
from phalanx.parallel.heartbeat import Heartbeat
from phalanx.parallel.step import WholeStep
from phalanx.report.evaluation import Evaluation
from phalanx.report.report import Report

RAW_SHARE = 0.1  # of the training samples
WORST_PICTURES = 3  # multiple of `report.pictures` for the worst samples: many families render two or three per sample


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the model on every evaluation sample, each exactly once over all ranks. All its methods are collective.

    An evaluation during which the run is asked to stop has no result: a resumed run starts with it.
    """

    task: Task
    samples: Dataset[Any]
    model: nn.Module
    ema: Ema | None
    setup: Setup
    heartbeat: Heartbeat
    flags: StepFlags
    whole: WholeStep

    @cached_property
    def validation_samples(self) -> Dataset[Any]:
        """Evaluation samples with the transforms of training, so that targets have the form that the loss expects."""
        return self.task.for_validation_loss(self.samples).dataset('train')

    def start(self, progress: Progress, report: Report) -> bool:
        """Evaluate the initial weights; True if they have a score, and so are the best until another evaluation is better."""
        result = self.evaluate(0)
        if result is None:
            return False
        best = self.record(progress, result)
        progress.start_metrics = progress.metrics if best else {}
        report.evaluation(0, result, best=best)
        return best

    def record(self, progress: Progress, result: Evaluation) -> bool:
        """Record an evaluation at the current step; True if it is the best so far."""
        return progress.record_evaluation(result.metrics, (self.task.main_metric, *self.task.tie_breakers))

    def step(self, progress: Progress, report: Report, *, every: Length, is_last: bool) -> bool:
        """Evaluate the model after the current step; True if it is the best so far. `every`: length between two evaluations.

        The raw weights are evaluated beside their EMA at the end, and before that as often as it reads at most RAW_SHARE as
        many samples as training does.
        """
        self.agree_on_statistics()
        averages = self.ema is not None and self.ema.is_settled
        with self.ema.applied() if self.ema is not None and averages else contextlib.nullcontext():
            result = self.evaluate(progress.step, report)
        if result is None:
            return False
        # Raw weights beside the average: the log shows what the EMA gains.
        raw = None
        if averages and (is_last or self.raw_every(every).is_completed_at(progress.step)):
            raw = self.evaluate(progress.step)
        best = self.record(progress, result)
        report.evaluation(progress.step, result, best=best, raw=raw.metrics if raw else None)
        return best

    def raw_every(self, every: Length) -> Length:
        """Return the length between two evaluations of the raw weights, if evaluations are `every` apart."""
        trained = every.steps * self.setup.recipe.train.global_batch(dist.world_size())  # samples between two evaluations
        return replace(every, steps=every.steps * math.ceil(len(self.samples) / (RAW_SHARE * trained)))

    def evaluate(self, step: int, pictured: Report | None = None) -> Evaluation | None:
        """Evaluate the network as it is now; None if stopped. Pictures go to the report `pictured`."""
        # With several ranks none may leave by itself: others could wait for it in a collective.
        cancelled = (lambda: self.flags.stop_asked) if dist.world_size() == 1 else (lambda: False)
        setup = replace(self.setup, beat=partial(self.heartbeat.beat, step, 'evaluating'), is_cancelled=cancelled)
        recipe = setup.recipe
        try:
            result = evaluate(self.task, self.model, setup, self.samples, may_continue=self.may_continue)
            # Pictures are rendered by the main rank alone, from the weights that were just evaluated.
            if pictured is not None and dist.rank() == 0:
                first = range(min(recipe.report.pictures, len(self.samples)))
                renderer = SampleRenderer.from_model(self.model, self.task, self.samples, recipe.train.seed, setup.device)
                pictured.pictures(render_pictures(renderer, first))
                result = add_worst_pictures(result, renderer, WORST_PICTURES * len(first))
            if recipe.evaluate.loss:
                # The loss takes a second pass over all samples: too long to ignore a stop request that came during the first.
                if not self.may_continue():
                    raise EvaluationStoppedError
                loss = validation_loss(self.task, self.model, setup, self.whole, self.validation_samples)
                result = replace(result, metrics={**result.metrics, 'validation_loss': loss})
        except (EvaluationStoppedError, LoadingCancelledError):
            self.flags.stop_agreed = True
            return None
        finally:
            self.model.train()
        return result

    def may_continue(self) -> bool:
        """True unless a rank was asked to stop. Ranks agree over the host, since the device has work queued."""
        self.flags.stop_agreed |= bool(dist.sum_over_ranks(torch.tensor(float(self.flags.stop_asked))))
        return not self.flags.stop_agreed

    def agree_on_statistics(self) -> None:
        """Give all ranks the mean of their running statistics, if norms are not global: one model is evaluated and saved."""
        # With `global`, statistics are already equal on all ranks; `frozen` ones never change.
        if self.setup.recipe.norm_sync in ('node', 'off'):
            names = [name for name, buffer in self.model.named_buffers() if buffer.is_floating_point()]
            averaged = self.ema.averages(names) if self.ema else []
            dist.average_flat_over_ranks([*map(self.model.get_buffer, names), *averaged])
