"""Evaluation of a model: each evaluation sample exactly once over all ranks."""

import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import torch
from torch import nn

from phalanx.data.cache import PictureCache
from phalanx.data.samples import Dataset, Draw, Image, SampleError
from phalanx.engine.loader import Loader, check_bad_samples, evaluation_draws
from phalanx.engine.meters import Stopwatch, slower_ranks
from phalanx.engine.precision import Precision
from phalanx.engine.schema import Recipe
from phalanx.families.figures import Grade, Pictures
from phalanx.families.task import Metric, Task
from phalanx.parallel import dist
from phalanx.report.evaluation import Evaluation, Worst
from phalanx.system.errors import RunError

WORST = 24  # maximum number of worst samples to list
AGREEMENTS = 20  # maximum number of synchronisations per evaluation to agree on a stop: each waits for the slowest rank


class EvaluationStoppedError(Exception):
    """The evaluation was stopped before its last sample; there is no result."""


@dataclass(frozen=True)
class Setup:
    """Settings of an evaluation pass."""

    recipe: Recipe
    device: torch.device
    precision: Precision
    cache: PictureCache | None = None
    beat: Callable[[], None] = lambda: None  # called before each batch of an evaluation
    is_cancelled: Callable[[], bool] = lambda: False  # True if this rank may leave while it waits for a batch

    def loader(self, task: Task, dataset: Dataset[Any], replace: bool = False) -> Loader[Any, Any]:
        """Return a loader of `dataset`. Unreadable samples are left out, or with `replace` (training) replaced by the next."""
        return Loader(
            dataset,
            task.collate,
            workers=self.recipe.train.workers,
            bad_samples=self.recipe.train.bad_samples,
            device=self.device,
            replace=replace,
            cache=self.cache,
            is_cancelled=self.is_cancelled,
        )


@torch.no_grad()
def evaluate(
    task: Task, model: nn.Module, setup: Setup, dataset: Dataset[Any], *, may_continue: Callable[[], bool] = lambda: True
) -> Evaluation:
    """Return the metrics of `model` on the samples of `dataset`. Collective. Raises BadSampleError if too many of them are
    unreadable.

    `may_continue` is called at most AGREEMENTS times, before the same batches on all ranks, so that it may use collectives. If
    it returns False, which it must do on all ranks alike, EvaluationStoppedError is raised.
    """
    begin = time.perf_counter()
    metric = task.metric()
    loader, train, batch_size = setup.loader(task, dataset), setup.recipe.train, setup.recipe.evaluate.batch_size
    clock = Stopwatch()
    # Samples are dealt out to ranks one by one, and are never padded to equal shares: each counts exactly once.
    share = [*evaluation_draws(len(dataset), batch_size, train.seed, dist.rank(), dist.world_size())]
    batches = clock.time_waits(loader.batches(iter(share)))
    grades: list[Grade | None] = []  # of the readable samples of this rank, in order
    begun: list[tuple[Callable[[], Any], Any]] = []  # a prediction that has begun, and its batch
    # Predict this rank's share. All ranks loop equally often, since `may_continue` is collective.
    model.eval()
    with setup.precision.autocast():
        largest_share = math.ceil(len(dataset) / dist.world_size() / batch_size)  # in batches
        for number in range(largest_share):
            setup.beat()
            if number % math.ceil(largest_share / AGREEMENTS) == 0:
                clock.pause()
                if not may_continue():
                    raise EvaluationStoppedError
                clock.resume()
            batch = next(batches, None)
            if batch is not None:  # the share may be smaller on this rank, or contain batches without readable samples
                moved = batch.to(setup.device)
                begun.append((task.begin_prediction(model, moved), moved))
            # A device predicts this batch while the host finishes the one before.
            while len(begun) > (0 if number == largest_share - 1 else 1):
                finish, moved = begun.pop(0)
                grades += update(metric, finish(), moved)
    # Collect the counts, unreadable samples, times and worst samples of all ranks.
    seconds, waited = clock.lap()
    metric.gather()
    phases = {'reading the evaluation samples': waited, 'predicting': seconds - waited}
    graded = zip((draw.index for draws in share for draw in draws if draw.index not in loader.bad), grades, strict=True)
    bad, ranks, low = zip(*dist.gather_objects((loader.bad, phases, worst_samples(graded))), strict=True)
    missed = {index: why for of_rank in bad for index, why in of_rank.items()}
    check_bad_samples(missed, train.bad_samples)
    is_main = dist.rank() == 0
    # Only the main rank has the counts of all samples; the others get its metrics.
    return Evaluation(
        metrics=dist.broadcast_object(numbers_of(metric, task.main_metric) if is_main else None),
        table=metric.table() if is_main else [],
        figures=metric.figures() if is_main else [],
        worst=worst_of(dataset, chain.from_iterable(low)),
        samples=len(dataset) - len(missed),
        seconds=time.perf_counter() - begin,
        missed=missed,
        slow=slower_ranks(ranks),
    )


def update(metric: Metric, prediction: Any, batch: Sized) -> Sequence[Grade | None]:
    """Count a batch; return the grade of each sample, which is None in metrics that give none."""
    return metric.update(prediction, batch) or [None] * len(batch)


def numbers_of(metric: Metric, main_metric: str) -> dict[str, float]:
    """Numbers of a metric by name. Raises RunError for anything else, and without the main one."""
    found = metric.compute()
    try:
        numbers = {name: float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError):
        numbers = {}
    if main_metric not in numbers:
        title = type(metric).__name__
        raise RunError(f'metric: compute() of {title} must return numbers by name, with {main_metric!r}; it returned {found!r}')
    return numbers


def worst_samples(graded: Iterable[tuple[int, Grade | None]]) -> list[tuple[int, Grade]]:
    """Return the WORST lowest-graded of (index, grade) pairs; independent of their distribution over ranks."""
    # Ties are broken by the index, so that the list does not depend on the number of ranks.
    known = ((index, grade) for index, grade in graded if grade is not None)
    return heapq.nsmallest(WORST, known, key=lambda pair: (pair[1].value, pair[0]))


def worst_of(dataset: Dataset[Any], graded: Iterable[tuple[int, Grade | None]]) -> list[Worst]:
    """Return the worst samples with their names, worst first."""
    return [Worst(index, dataset.name(index), grade) for index, grade in worst_samples(graded)]


@dataclass(frozen=True)
class SampleRenderer:
    """Renderer of samples with their predictions. `predict` maps a draw and its batch to the input of the metric."""

    task: Task
    samples: Dataset[Any]
    predict: Callable[[Draw, Any], Any]
    seed: int
    device: torch.device

    @classmethod
    def from_model(cls, model: nn.Module, task: Task, samples: Dataset[Any], seed: int, device: torch.device) -> Self:
        """Return a renderer of the predictions of `model`, which is on `device`."""
        return cls(task, samples, lambda _, batch: task.predict(model, batch), seed, device)


def add_worst_pictures(result: Evaluation, renderer: SampleRenderer, most: int) -> Evaluation:
    """Return `result` with a figure of its worst samples: at least `most` pictures, if there are that many."""
    rows: list[tuple[str, list[tuple[str, Image]]]] = []
    for worst in result.worst:
        # Families render different numbers of pictures per sample, so count pictures, not samples.
        if sum(len(row) for _, row in rows) >= most:
            break
        rows += [(worst.caption, row) for row in render_pictures(renderer, [worst.index])]
    return replace(result, figures=[*result.figures, *([Pictures(renderer.task.metric().worst, rows)] if rows else [])])


@torch.no_grad()
def render_pictures(renderer: SampleRenderer, numbers: Iterable[int]) -> list[list[tuple[str, Image]]]:
    """Return captioned pictures of samples for the report, one row per sample. Uses no collectives: may run on one rank."""
    task, rows = renderer.task, []
    for number in numbers:
        draw = Draw(number, 0, 0, renderer.seed)
        try:
            sample = renderer.samples[draw]
        except SampleError:  # already reported by the evaluation
            continue
        batch = task.collate([sample]).to(renderer.device)
        result = task.results(renderer.predict(draw, batch), batch)[0]
        rows.append(task.picture(sample, result))
    return rows
