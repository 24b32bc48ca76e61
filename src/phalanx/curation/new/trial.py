"""A few training steps, an evaluation and its pictures, timed on this node: how long a training will take."""

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch

from phalanx.curation.new.plan import Pace, speed_up
from phalanx.data.samples import Draw, SampleError
from phalanx.engine.checks import check_parts
from phalanx.engine.evaluation import WORST, SampleRenderer, render_pictures
from phalanx.engine.evaluator import WORST_PICTURES
from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer
from phalanx.report.figures import save_pictures

WARM = 2  # steps before the timed ones
SHARED = 3  # steps on all threads; the first is not timed
BUSY = 1.25  # wall time of the trial, in processor times, from which other work matters
SIZED = 32  # steps from which the mean size of the input follows
EVALUATED = 8  # timed evaluation samples, at least, unless they take longer than PATIENCE
DRAWN = 3  # samples whose pictures are drawn; the first is not timed
PATIENCE = 10  # seconds


class Trial(NamedTuple):
    """Measurements of a few training steps."""

    pace: Pace
    work: float  # operations per sample
    slowdown: float  # wall time per processor time: above 1 if other work takes processor time away


def try_steps(path: Path, steps: int) -> Trial:
    """Train WARM and `steps` timed steps, loaded without workers. Raises the errors of training.

    On a CPU, steps are timed on one thread: other work on the node hardly changes its processor time. What all threads gain is
    measured only if there is no such work, in which they would also wait for each other.
    """
    from phalanx.bench.flops import read_clock, step_flops
    from phalanx.engine.worker import process_group

    begin = time.process_time()
    job = open_job(str(path), [('train.workers=0', 'the trial')])
    parts = check_parts(job, 1)
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix='phalanx-') as folder, process_group(job.recipe.device) as device:

        def read() -> float:
            return read_clock(device) if device.type == 'cuda' else time.process_time()

        trainer = Trainer(job.recipe, job.task, folder=Path(folder), device=device, parts=parts)
        batches = trainer.batches()
        start, moments, sizes, wall = time.process_time() - begin, [read()], list[int](), time.perf_counter()
        try:
            torch.set_num_threads(1)
            for number in range(min(WARM + steps, trainer.until)):
                batch = next(batches)
                if number:
                    trainer.train_step(batch)
                else:  # counting takes time, but no figure contains that of the first step
                    work = step_flops(trainer, batch)
                trainer.progress.step += 1
                moments.append(read())
                sizes.append(batch.images[0].numel())
            slowdown = (time.perf_counter() - wall) / (moments[-1] - moments[0])
            torch.set_num_threads(threads)
            shared = [time.perf_counter()]
            for _ in range(0 if device.type == 'cuda' or threads == 1 or slowdown > BUSY else SHARED):
                trainer.train_step(batch)
                shared.append(time.perf_counter())
            torch.set_num_threads(1)
            evaluated, pictures = _time_evaluation(trainer, read), _time_pictures(trainer, Path(folder), read)
        finally:
            torch.set_num_threads(threads)
        trainer.read_numbers(keep=0)
        seconds = [later - earlier for earlier, later in pairwise(moments)]
        samples, step = trainer.stream.global_batch_size, step_time(seconds, sizes, _mean_size(trainer))
        rate = samples / step * (gain(seconds[-1], shared, threads) if device.type == 'cpu' else 1)
        return Trial(Pace(rate, evaluated * samples / step, pictures, start), work / samples, slowdown)


def step_time(seconds: Sequence[float], sizes: Sequence[int], size: float) -> float:
    """Seconds of a step with an input of `size` numbers, by timed `seconds` of steps with inputs of `sizes`.

    A part of a step takes as long for small inputs as for large ones: a line through all steps but the first. Where inputs have
    one size, the mean after WARM steps.
    """
    if len({*sizes[1:]}) < 2:
        return fmean(seconds[WARM:] or seconds) * size / fmean(sizes[WARM:] or sizes)
    slope, least = np.polyfit(sizes[1:], seconds[1:], 1)
    return float(np.clip(least + slope * size, min(seconds), max(seconds)))


def gain(alone: float, shared: Sequence[float], threads: int) -> float:
    """Speed-up of a step on all `threads`, which took `alone` seconds on one and ended at the moments `shared` on all.

    At most what they allow in theory, and at least 1; without at least two moments after the first, as in theory.
    """
    if len(shared) < 3:
        return speed_up(threads)
    return min(speed_up(threads), max(1.0, alone / ((shared[-1] - shared[1]) / (len(shared) - 2))))


def _mean_size(trainer: Trainer) -> float:
    """Mean size of the network's input over SIZED steps: some recipes change it from step to step, up to a factor of 2."""
    sizes = []
    for step in range(SIZED):
        with contextlib.suppress(SampleError):
            sizes.append(trainer.task.collate([trainer.dataset[trainer.stream.share(step)[0]]]).images[0].numel())
    return fmean(sizes)


@torch.no_grad()
def _time_evaluation(trainer: Trainer, read: Callable[[], float]) -> float:
    """Time of an evaluated sample by the clock `read`, over at least EVALUATED ones after a batch that is not timed."""
    task, samples, batch_size = trainer.task, trainer.evalset, trainer.recipe.evaluate.batch_size
    numbers = [n % len(samples) for n in range(batch_size + max(EVALUATED, batch_size))]
    shares = ([Draw(n) for n in numbers[first : first + batch_size]] for first in range(0, len(numbers), batch_size))
    metric, model, moments = task.metric(), trainer.model.eval(), [read()]
    with trainer.precision.autocast():
        for batch in trainer.evaluator.setup.loader(task, samples).batches(shares):
            moved = batch.to(trainer.device)
            metric.update(task.predict(model, moved), moved)
            moments.append(read())
            if len(moments) > 2 and moments[-1] - moments[0] > PATIENCE:
                break
    model.train()
    if len(moments) < 3:  # too few samples of the evaluation can be used
        return 0.0
    timed = min(len(numbers), (len(moments) - 1) * batch_size) - batch_size
    return (moments[-1] - moments[1]) / timed


def _time_pictures(trainer: Trainer, folder: Path, read: Callable[[], float]) -> float:
    """Time of the pictures of an evaluation by the clock `read`: its first samples and its worst. Draws DRAWN of them."""
    recipe, samples = trainer.recipe, trainer.evalset
    first = min(recipe.report.pictures, len(samples))
    renderer = SampleRenderer.from_model(trainer.model.eval(), trainer.task, samples, recipe.train.seed, trainer.device)
    moments, counts = [read()], list[int]()
    for number in range(min(first, DRAWN)):
        for row in render_pictures(renderer, [number]):
            save_pictures(row, folder, '')
            counts.append(len(row))
            moments.append(read())
    trainer.model.train()
    if len(counts) < 2:
        return 0.0
    worst = min(math.ceil(WORST_PICTURES * first / fmean(counts)), WORST, len(samples))
    return (first + worst) * (moments[-1] - moments[1]) / (len(counts) - 1)
