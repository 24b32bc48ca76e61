"""The evaluations of a run in progress: of which weights, and what comes of them."""

import contextlib
import math
from dataclasses import dataclass, replace
from functools import partial
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
from phalanx.engine.loader import UnwantedError
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

RAW_SHARE = 0.1  # of the samples trained on
WORST_PICTURES = 3  # of the worst samples, as multiples of `report.pictures`: many families show two or three of a sample


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the model on every evaluation sample, each exactly once over all ranks, which call its methods together.

    Nothing comes of an evaluation during which the run is asked to stop: a resumed run begins with it.
    """

    task: Task
    samples: Dataset[Any]
    model: nn.Module
    ema: Ema | None
    setup: Setup
    heartbeat: Heartbeat
    flags: StepFlags
    whole: WholeStep

    def start(self, progress: Progress, report: Report) -> None:
        """Evaluates the weights that the run begins with. They are never its best, since it saves no checkpoint of them."""
        found = self.found(0)
        if found is not None:
            score = found.metrics[self.task.main_metric]
            progress.start = None if math.isnan(score) else score
            report.evaluation(0, found, best=False)

    def step(self, progress: Progress, report: Report, *, every: Length, is_last: bool) -> bool:
        """Evaluates the model of the step reached; whether it is the best so far. `every`: the length between two evaluations.

        The raw weights are evaluated beside their EMA at the end, and before as often as that reads no more samples than
        RAW_SHARE of those trained on.
        """
        self.agree_on_statistics()
        averages = self.ema is not None and self.ema.is_settled
        with self.ema.applied() if self.ema is not None and averages else contextlib.nullcontext():
            found = self.found(progress.step, report)
        if found is None:
            return False
        raw = None
        if averages and (is_last or self.raw_every(every).is_completed_at(progress.step)):
            raw = self.found(progress.step)
        best = progress.evaluated_as(found.metrics, (self.task.main_metric, *self.task.tie_breakers))
        report.evaluation(progress.step, found, best=best, raw=raw.metrics if raw else None)
        return best

    def raw_every(self, every: Length) -> Length:
        """The length between two evaluations of the raw weights, where evaluations come `every` so many steps."""
        trained = every.steps * self.setup.recipe.train.global_batch(dist.world_size())  # samples between two evaluations
        return replace(every, steps=every.steps * math.ceil(len(self.samples) / (RAW_SHARE * trained)))

    def found(self, step: int, pictured: Report | None = None) -> Evaluation | None:
        """What an evaluation of the network as it is now finds, None when it was stopped; pictures go to `pictured`."""
        # Of several ranks none leaves by itself: others may be waiting for it.
        unwanted = (lambda: self.flags.stop_asked) if dist.world_size() == 1 else (lambda: False)
        setup = replace(self.setup, beat=partial(self.heartbeat.beat, step, 'evaluating'), is_unwanted=unwanted)
        recipe = setup.recipe
        try:
            found = evaluate(self.task, self.model, setup, goes_on=self.goes_on)
            if pictured is not None and dist.rank() == 0:
                first = range(min(recipe.report.pictures, len(self.samples)))
                shown = SampleRenderer.by(self.model, self.task, self.samples, recipe.train.seed, setup.device)
                pictured.pictures(render_pictures(shown, first))
                found = add_worst_pictures(found, shown, WORST_PICTURES * len(first))
            if recipe.evaluate.loss:
                if not self.goes_on():
                    raise EvaluationStoppedError
                loss = validation_loss(self.task, self.model, setup, self.whole)
                found = replace(found, metrics={**found.metrics, 'validation_loss': loss})
        except (EvaluationStoppedError, UnwantedError):
            self.flags.stop_agreed = True
            return None
        finally:
            self.model.train()
        return found

    def goes_on(self) -> bool:
        """Whether no rank was asked to stop; they agree over the host, since the device has other things to do."""
        self.flags.stop_agreed |= bool(dist.sum_over_ranks(torch.tensor(float(self.flags.stop_asked))))
        return not self.flags.stop_agreed

    def agree_on_statistics(self) -> None:
        """Where norms are not those of the step, gives all ranks the mean of theirs: one model is evaluated, and saved."""
        if self.setup.recipe.norm_sync in ('node', 'off'):
            names = [name for name, buffer in self.model.named_buffers() if buffer.is_floating_point()]
            averaged = self.ema.averages(names) if self.ema else []
            dist.average_flat_over_ranks([*map(self.model.get_buffer, names), *averaged])
