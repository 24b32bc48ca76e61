"""Evaluating a model on the evaluation samples, each exactly once over all ranks."""

import heapq
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import torch
from torch import nn

from phalanx.data.cache import PictureCache
from phalanx.data.samples import Dataset, Draw, Image, SampleError
from phalanx.engine.loader import Loader, check_bad, evaluation_draws
from phalanx.engine.meters import Stopwatch, slower_ranks
from phalanx.engine.precision import Precision
from phalanx.engine.schema import Recipe
from phalanx.families.figures import Grade, Pictures
from phalanx.families.task import Task
from phalanx.parallel import dist
from phalanx.report.evaluation import Evaluation, Worst

WORST = 24  # samples at most that are named as the worst
AGREEMENTS = 20  # times at most that ranks wait for each other in an evaluation, to agree on whether it goes on


class EvaluationStoppedError(Exception):
    """The evaluation was ended before it had seen every sample; nothing came out."""


@dataclass(frozen=True)
class Setup:
    """How a pass over samples is made."""

    recipe: Recipe
    device: torch.device
    precision: Precision
    cache: PictureCache | None = None
    beat: Callable[[], None] = lambda: None  # called before each batch of an evaluation
    is_unwanted: Callable[[], bool] = lambda: False  # whether this rank may leave an evaluation while it waits for a batch

    def loader(self, task: Task, dataset: Dataset[Any], replace: bool = False) -> Loader[Any, Any]:
        """What reads `dataset`; a sample that cannot be read is left out, or, to train with, replaced by another."""
        return Loader(
            dataset,
            task.collate,
            workers=self.recipe.train.workers,
            bad_samples=self.recipe.train.bad_samples,
            device=self.device,
            replace=replace,
            cache=self.cache,
            is_unwanted=self.is_unwanted,
        )


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, setup: Setup, *, goes_on: Callable[[], bool] = lambda: True) -> Evaluation:
    """The metrics of `model` on the evaluation split. Raises BadSampleError when too many samples cannot be read.

    `goes_on` is asked at most AGREEMENTS times, before the same batches on all ranks, so
    that they can agree in it; when it says no, which it must say on all ranks alike, EvaluationStoppedError is raised.
    """
    begin = time.perf_counter()
    dataset, metric = task.dataset('eval'), task.metric()
    loader, train, batch_size = setup.loader(task, dataset), setup.recipe.train, setup.recipe.evaluate.batch_size
    clock = Stopwatch()
    share = [*evaluation_draws(len(dataset), batch_size, train.seed, dist.rank(), dist.world_size())]
    batches = clock.waiting(loader.batches(iter(share)))
    grades: list[Grade | None] = []  # of the samples of this rank that can be read, in their order
    model.eval()
    with setup.precision.autocast():
        largest_share = math.ceil(len(dataset) / dist.world_size() / batch_size)  # in batches
        for number in range(largest_share):
            setup.beat()
            if number % math.ceil(largest_share / AGREEMENTS) == 0:
                clock.pause()
                if not goes_on():
                    raise EvaluationStoppedError
                clock.go_on()
            batch = next(batches, None)
            if batch is not None:  # this rank's share may be smaller, or hold batches of which nothing can be read
                moved = batch.to(setup.device)
                grades += metric.update(task.predict(model, moved), moved)
    seconds, waited = clock.lap()
    metric.gather()
    phases = {'reading the evaluation samples': waited, 'predicting': seconds - waited}
    graded = zip((draw.index for draws in share for draw in draws if draw.index not in loader.bad), grades, strict=True)
    bad, ranks, low = zip(*dist.gather_objects((loader.bad, phases, worst_samples(graded))), strict=True)
    missed = {index: why for found in bad for index, why in found.items()}
    check_bad(missed, train.bad_samples)
    is_main = dist.rank() == 0
    return Evaluation(
        metrics=dist.broadcast_object(metric.compute() if is_main else None),
        table=metric.table() if is_main else [],
        figures=metric.figures() if is_main else [],
        worst=worst_of(dataset, chain.from_iterable(low)),
        samples=len(dataset) - len(missed),
        seconds=time.perf_counter() - begin,
        missed=missed,
        slow=slower_ranks(ranks),
    )


def worst_samples(graded: Iterable[tuple[int, Grade | None]]) -> list[tuple[int, Grade]]:
    """The WORST of samples (number, grade) that have a grade; which ones does not depend on how they were shared out."""
    known = ((index, grade) for index, grade in graded if grade is not None)
    return heapq.nsmallest(WORST, known, key=lambda pair: (pair[1].value, pair[0]))


def worst_of(dataset: Dataset[Any], graded: Iterable[tuple[int, Grade | None]]) -> list[Worst]:
    """The worst of samples (number, grade) by name, the worst first."""
    return [Worst(index, dataset.name(index), grade) for index, grade in worst_samples(graded)]


@dataclass(frozen=True)
class SampleRenderer:
    """What samples are shown with: the data set, and `predict`, which says of a sample and its batch what the metric takes."""

    task: Task
    samples: Dataset[Any]
    predict: Callable[[Draw, Any], Any]
    seed: int
    device: torch.device

    @classmethod
    def by(cls, model: nn.Module, task: Task, samples: Dataset[Any], seed: int, device: torch.device) -> Self:
        """By a network on `device`."""
        return cls(task, samples, lambda _, batch: task.predict(model, batch), seed, device)


def add_worst_pictures(found: Evaluation, shown: SampleRenderer, most: int) -> Evaluation:
    """`found` with its worst samples among its figures, in `most` pictures at least where there are as many."""
    rows: list[tuple[str, list[tuple[str, Image]]]] = []
    for worst in found.worst:
        if sum(len(row) for _, row in rows) >= most:
            break
        rows += [(worst.caption, row) for row in render_pictures(shown, [worst.index])]
    return replace(found, figures=[*found.figures, *([Pictures(shown.task.metric().worst, rows)] if rows else [])])


@torch.no_grad()
def render_pictures(shown: SampleRenderer, numbers: Iterable[int]) -> list[list[tuple[str, Image]]]:
    """Captioned pictures of samples, a row each, for the report. On one rank alone: nothing is exchanged here."""
    task, rows = shown.task, []
    for number in numbers:
        draw = Draw(number, 0, 0, shown.seed)
        try:
            sample = shown.samples[draw]
        except SampleError:  # the evaluation has reported it
            continue
        batch = task.collate([sample]).to(shown.device)
        result = task.results(shown.predict(draw, batch), batch)[0]
        rows.append(task.picture(sample, result))
    return rows
