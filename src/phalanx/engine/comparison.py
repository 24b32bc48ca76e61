"""Comparison of trained models on the same evaluation samples, with the uncertainty that the choice of samples causes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from phalanx.data.samples import Dataset, Draw
from phalanx.engine.device import pick_device, place_network
from phalanx.engine.evaluation import SampleRenderer, Setup, render_pictures, update
from phalanx.engine.job import Job
from phalanx.engine.loader import evaluation_draws
from phalanx.engine.precision import Precision
from phalanx.families.figures import Figure, Grade, Legend, Pictures
from phalanx.families.task import Metric
from phalanx.system.errors import RequestError
from phalanx.weights.reading import load_weights

LEVEL = 0.95  # of the intervals
PICTURED = 12  # images that differ most


@runtime_checkable
class Joinable(Protocol):
    """Metric whose counts can be added up, so that it is computed on resampled images without predicting them again."""

    def join(self, others: Sequence[Any]) -> None:
        """Count what other metrics of this kind have counted too; one that occurs several times counts as often."""


@dataclass(frozen=True)
class Measured:
    """Model of a run and its result for each evaluation sample that can be read."""

    name: str
    job: Job
    model: torch.nn.Module
    setup: Setup
    dataset: Dataset[Any]
    samples: Sequence[str]  # names, of unreadable ones too
    total: Metric  # of all samples
    metrics: Mapping[int, Joinable]  # of each sample alone, by its index; empty if they cannot be joined
    grades: Mapping[int, Grade | None]


class Difference(NamedTuple):
    """Value of two models and the interval of their difference, second minus first. NaN where a value is undefined."""

    name: str
    first: float
    second: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """True if the interval does not contain 0."""
        return self.low > 0 or self.high < 0


@torch.no_grad()
def measure(name: str, job: Job, dataset: Dataset[Any], advance: Callable[[], None] = lambda: None) -> Measured:
    """Evaluate the best weights of a run on `dataset`, image by image; `advance` is called after each.

    Raises CheckpointError without weights and BadSampleError if too many samples are unreadable.
    """
    task, device = job.task, pick_device(job.recipe.device)
    model = task.model()
    load_weights(model, job.folder, raw=job.recipe.ema is None)
    place_network(model, device, channels_last=job.recipe.train.channels_last)
    model.eval()
    setup = Setup(job.recipe, device, Precision(job.recipe.precision, device))
    total = task.metric()
    metrics, grades = dict[int, Joinable](), dict[int, Grade | None]()
    draws = evaluation_draws(len(dataset), 1, job.recipe.train.seed, 0, 1)
    with setup.precision.autocast():
        # One image at a time, so that each has a metric of its own.
        for batch in setup.loader(task, dataset).batches(draws):
            moved = batch.to(device)
            own = task.metric() if isinstance(total, Joinable) else total
            (index,), (grade,) = batch.indices, update(own, task.predict(model, moved), moved)
            grades[index] = grade
            if isinstance(own, Joinable):
                metrics[index] = own
            advance()
    if isinstance(total, Joinable):
        total.join([*metrics.values()])
    total.gather()
    names = [dataset.name(index) for index in range(len(dataset))]
    return Measured(name, job, model, setup, dataset, names, total, metrics, grades)


def check_comparable(first: Measured, second: Measured) -> None:
    """Raise RequestError unless both models were evaluated on the same samples, by the same family."""
    families = [one.job.resolved.value['task'].value for one in (first, second)]
    if families[0] != families[1]:
        raise RequestError(f'{first.name} is of {families[0]}, {second.name} of {families[1]}; --no_eval compares their curves')
    if first.samples != second.samples:
        raise RequestError(
            f'{second.name} was trained with {len(second.samples)} evaluation samples, {first.name} with {len(first.samples)}, '
            'or with others; give both the same ones with --set data..., or compare the curves alone with --no_eval'
        )


def compare(
    first: Measured, second: Measured, resamples: int, seed: int = 0, advance: Callable[[], None] = lambda: None
) -> tuple[list[Difference], list[Difference]]:
    """Return the differences of the metrics, and those of the classes (or other subsets that the metric has a table of).

    Intervals are those of the paired bootstrap (Efron & Tibshirani, An Introduction to the Bootstrap, 1993): images are drawn
    with replacement, the same ones for both models, `resamples` times; the interval leaves out 2.5 % at either end. They do
    not contain what another seed of the training would change. Without metrics per image they are NaN.
    """
    values = [_values(one.total) for one in (first, second)]
    common = sorted(first.metrics.keys() & second.metrics.keys())
    drawn = list[dict[tuple[str, str], float]]()
    rng = np.random.default_rng(seed)
    for _ in range(resamples if common else 0):
        numbers = rng.choice(common, len(common))
        a, b = (_values(_joined(one, numbers.tolist())) for one in (first, second))
        drawn.append({key: b[key] - a[key] for key in a.keys() & b.keys()})
        advance()
    metrics, classes = list[Difference](), list[Difference]()
    for key in values[0]:
        if key not in values[1]:
            continue
        group, name = key
        differences = [one[key] for one in drawn if not math.isnan(one.get(key, math.nan))]
        # A class that most resamples lack has no reliable interval.
        low, high = (
            np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
            if len(differences) > resamples / 2
            else (math.nan, math.nan)
        )
        (classes if group else metrics).append(Difference(f'{group} {name}'.strip(), values[0][key], values[1][key], low, high))
    return metrics, classes


def picture_differences(first: Measured, second: Measured) -> list[Figure]:
    """Return the images whose grades differ most, with both predictions, and the meaning of their colours."""
    grades = [grade.value for one in (first, second) for grade in one.grades.values() if grade is not None]
    best = 1.0 if max(grades, default=0.0) > 0 else 0.0  # grades are shares up to 1, or 0 minus something
    gaps = {
        index: (second.grades[index] or Grade(best, '')).value - (grade or Grade(best, '')).value
        for index, grade in first.grades.items()
        if index in second.grades
    }
    chosen = sorted((index for index in gaps if gaps[index]), key=lambda index: (-abs(gaps[index]), index))[:PICTURED]
    rows = list[tuple[str, Sequence[tuple[str, Any]]]]()
    for index in chosen:
        pictures = [_render(one, index) for one in (first, second)]
        reasons = [f'{one.name}: {grade.reason if (grade := one.grades[index]) else "all right"}' for one in (first, second)]
        both = [(one.name, row[-1][1]) for one, row in zip((first, second), pictures, strict=True)]
        rows.append((f'{first.samples[index]}: {"; ".join(reasons)}', [*pictures[0][:-1], *both]))
    legends = [figure for figure in first.total.figures() if isinstance(figure, Legend)]
    return [*legends, Pictures('Images that differ most', rows)] if rows else []


def _render(one: Measured, index: int) -> list[tuple[str, Any]]:
    """Return the captioned pictures of a sample, the prediction last."""
    task, setup = one.job.task, one.setup

    def predict(draw: Draw, batch: Any) -> Any:
        with setup.precision.autocast():
            return task.predict(one.model, batch)

    renderer = SampleRenderer(task, one.dataset, predict, setup.recipe.train.seed, setup.device)
    (row,) = render_pictures(renderer, [index])
    return row


def _joined(one: Measured, numbers: Sequence[int]) -> Metric:
    metric = one.job.task.metric()
    assert isinstance(metric, Joinable)
    metric.join([one.metrics[number] for number in numbers])
    return metric


def _values(metric: Metric) -> dict[tuple[str, str], float]:
    """Return the numbers of a metric: by ('', name), and the first share of each row of its table by (column, row)."""
    found = {('', name): value for name, value in metric.compute().items()}
    rows = metric.table()
    label, *columns = rows[0] if rows else ('',)
    column = next((key for key in columns if any(isinstance(row[key], float) for row in rows)), '')
    for row in rows if column else ():
        value = row[column]
        found[f'{column} of', str(row[label])] = value if isinstance(value, float) else math.nan
    return found
