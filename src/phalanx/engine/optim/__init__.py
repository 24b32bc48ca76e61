"""Optimizers and learning-rate schedules that a recipe can name."""

import math
from collections.abc import Callable
from functools import partial

from torch.optim import Optimizer

from phalanx.engine.optim.layerwise import Lamb, Lars
from phalanx.engine.optim.optimizers import adam, adamw, sgd
from phalanx.engine.optim.schedule import Schedule, constant, cosine, exponential, piecewise, polynomial, step

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {'sgd': sgd, 'adam': adam, 'adamw': adamw, 'lars': Lars, 'lamb': Lamb}
NEED_DECAY = (Lars, Lamb)  # optimizers that reject groups without weight decay

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    'constant': constant,
    'polynomial': polynomial,
    'cosine': cosine,
    'exponential': exponential,
    'step': step,
    'piecewise': piecewise,
}


def check_optimizer(build: partial[Optimizer]) -> None:
    """Raise ValueError for options that are invalid for every optimizer.

    Builds none: that would make torch import its compiler, which takes 3 s.
    """
    for name, value in build.keywords.items():
        for number in value if isinstance(value, tuple) else (value,):
            if not isinstance(number, int | float):  # a word, or none, for an optimizer of a plugin
                continue
            if number < 0:
                raise ValueError(f'{name} cannot be negative, got {number}')
            if name in ('momentum', 'betas') and number >= 1:
                raise ValueError(f'{name} must be below 1, got {number}')


def check_schedule(build: partial[Schedule]) -> None:
    """Raise ValueError for options that are invalid for a run of any length, and for a step without a rate."""
    schedule = build(1.0, 1_000_000, 1000.0)
    for at in (0, 500_000, 999_999):
        rate = schedule(at) if callable(schedule) else None
        if not isinstance(rate, int | float) or not math.isfinite(rate):
            raise ValueError(f'must be a function of the step (from 0) that returns the rate; for step {at} it is {rate!r}')
