"""Metrics and cost of an exported file on the evaluation samples.

The file runs in `phalanx.runtime`, with its own pre- and post-processing, as users run it. The metric is that of the recipe.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from phalanx.config.arguments import Assignments
from phalanx.data.samples import Draw, SampleError
from phalanx.deploy.exported import open_exported, parts_of
from phalanx.engine.evaluation import SampleRenderer, add_worst_pictures, numbers_of, update, worst_of
from phalanx.engine.job import Job, open_job
from phalanx.engine.loader import check_bad_samples, evaluation_draws
from phalanx.families.figures import Grade
from phalanx.report.evaluation import Evaluation
from phalanx.report.single import PAGE_PICTURES
from phalanx.runtime import Model
from phalanx.runtime.prepare import Image
from phalanx.system.errors import RequestError

BATCHES = (1, 2, 4, 8, 16)  # sizes to time


@dataclass(frozen=True)
class Cost:
    """Cost of the file on this node."""

    median_ms: float  # per single image: preparation, network, post-processing
    p95_ms: float
    best_batch: int  # of BATCHES: the batch size with the least time per image, for images of equal size
    best_batch_ms: float  # per image
    memory_mib: float  # growth of the process
    size_mib: float  # of the file


def open_pair(file: Path, data: str | None, assigned: Assignments) -> tuple[Job, Model, int]:
    """Job whose data `file` is evaluated on (`data`, default: that of its run folder), its model, and the memory before it.

    Raises RequestError and ConfigError.
    """
    if data is None and not (file.parent / 'config.yml').is_file():
        raise RequestError(f'{file}: is not in a run folder; name the run or recipe with the evaluation data: --data RUN')
    job = open_job(data or str(file.parent), assigned)
    before = psutil.Process().memory_info().rss
    model = open_exported(file)
    task = job.resolved.value['task'].value
    if model.guide['task'] != task:
        raise RequestError(f'{file}: is a {model.guide["task"]} model, the recipe is for {task}; --data names another')
    return job, model, before


def evaluate(job: Job, model: Model, file: Path, before: int, batches: Sequence[int] = BATCHES) -> tuple[Evaluation, Cost]:
    """Metrics of `model` on the evaluation samples, one by one, and its cost, with `batches` timed afterwards.

    `before`: the memory of the process without the model.
    """
    dataset, metric = job.task.dataset('eval'), job.task.metric()
    missed, seconds, first, growth = dict[int, str](), list[float](), list[Image](), 0
    begun, grades = time.perf_counter(), list[tuple[int, Grade | None]]()
    for (draw,) in evaluation_draws(len(dataset), 1, job.recipe.train.seed, 0, 1):
        # One by one, as a user calls the file; unreadable samples are left out, as in `phalanx eval RUN`.
        try:
            sample, image = dataset[draw], dataset.original(draw)
        except SampleError as error:
            missed[draw.index] = str(error)
            continue
        begin = time.perf_counter()
        outputs = model.predictions([image])
        seconds.append(time.perf_counter() - begin)
        growth = max(growth, psutil.Process().memory_info().rss - before)
        # Kept for timing batches afterwards.
        first += [image] if len(first) < max(batches) else []
        (grade,) = update(metric, job.task.predictions(outputs), job.task.collate([sample]))
        grades.append((draw.index, grade))
    check_bad_samples(missed, job.recipe.train.bad_samples)
    metric.gather()
    # Median and 95th percentile: a mean would include the first, slow image.
    median, p95 = np.percentile(seconds, (50, 95)) * 1000
    size = sum(part.stat().st_size for part in parts_of(file))
    cost = Cost(float(median), float(p95), *best_batch(model, first, batches), growth / 2**20, size / 2**20)
    result = Evaluation(
        metrics=numbers_of(metric, job.task.main_metric),
        table=metric.table(),
        figures=metric.figures(),
        worst=worst_of(dataset, grades),
        samples=len(seconds),
        seconds=time.perf_counter() - begun,
        missed=missed,
    )
    return result, cost


def add_pictures(result: Evaluation, job: Job, model: Model) -> Evaluation:
    dataset = job.task.dataset('eval')

    def predict(draw: Draw, batch: Any) -> Any:
        return job.task.predictions(model.predictions([dataset.original(draw)]))

    return add_worst_pictures(
        result, SampleRenderer(job.task, dataset, predict, job.recipe.train.seed, torch.device('cpu')), PAGE_PICTURES
    )


def best_batch(model: Model, images: Sequence[Image], batches: Sequence[int]) -> tuple[int, float]:
    """Batch size with the least time per image, and that time in milliseconds, from the second of two passes."""
    times: dict[int, float] = {}
    for size in (size for size in batches if size <= len(images)):
        # The first pass of a new size allocates memory; the second one counts.
        for _ in range(2):
            begin = time.perf_counter()
            model.predictions(images[:size])
            times[size] = (time.perf_counter() - begin) / size * 1000
    best = min(times, key=times.__getitem__)
    return best, times[best]
