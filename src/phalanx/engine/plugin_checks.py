"""Checks of transforms and metrics from plugins on samples, before a training begins."""

from typing import Any

import torch
from torch import nn

from phalanx.data.samples import Dataset, Draw, SampleError
from phalanx.engine.evaluation import numbers_of
from phalanx.engine.job import Job
from phalanx.parallel import dist

REPEATED = 8  # samples that are read twice


def is_foreign(part: object) -> bool:
    """True for a part of a plugin."""
    return not type(part).__module__.startswith('phalanx.')


def check_foreign_metric(job: Job, samples: Dataset[Any], model: nn.Module) -> None:
    """Raise RunError if the metric of a plugin does not give its numbers for a sample: the first evaluation may be hours away.

    Collective.
    """
    metric = job.task.metric()
    if not is_foreign(metric):
        return
    batch = job.task.collate([samples[Draw(0, 0, 0, job.recipe.train.seed)]])
    with torch.no_grad():
        metric.update(job.task.predict(model.eval(), batch), batch)
    metric.gather()
    if dist.rank() == 0:
        numbers_of(metric, job.task.main_metric)
        metric.table()
        metric.figures()


def check_foreign_transforms(samples: Dataset[Any], channels: int, seed: int) -> None:
    """Raise ValueError if a sample is no image after the transforms of plugins, or another one when it is read again.

    Such a training would depend on the number of ranks and workers, and on where it was resumed.
    """
    foreign = ' and '.join(type(each).__name__ for each in samples.transforms if is_foreign(each))
    for number in range(REPEATED if foreign else 0):
        draw = Draw(number % len(samples), number, 0, seed)
        name = samples.name(draw.index)
        try:
            first, second = (samples[draw].image for _ in range(2))
        except (SampleError, OSError):
            continue  # the loader reports and counts it
        except Exception as error:
            raise RuntimeError(f'transforms: {foreign} failed for {name}: {type(error).__name__}: {error}') from error
        if len(first) != channels or first.dtype not in (torch.uint8, torch.uint16):
            C, H, W = first.shape
            raise ValueError(
                f'transforms: with {foreign}, {name} is an image [{H}, {W}, {C}] of {first.dtype}; it must be '
                f'[H, W, {channels}] of uint8'
            )
        if not torch.equal(first, second):
            raise ValueError(
                f'transforms: with {foreign}, {name} is another image when it is read again; draw random numbers from the '
                "generator that a transform is called with (docs/extending.md, Other libraries' transforms)"
            )
