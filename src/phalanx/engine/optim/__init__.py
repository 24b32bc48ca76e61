"""Optimizers and learning-rate schedules that a recipe can name."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer

from phalanx.engine.optim.layerwise import Lamb, Lars
from phalanx.engine.optim.optimizers import adam, adamw, sgd
from phalanx.engine.optim.schedule import Schedule, constant, cosine, exponential, piecewise, polynomial, step
from phalanx.engine.timeline import Timeline

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


LENGTH = 1_000_000  # steps of the run that a schedule is tried for


def is_shipped(build: partial[Any]) -> bool:
    """True for a part of this package, False for one of a plugin."""
    return build.func.__module__.startswith('phalanx.')


def check_optimizer(build: partial[Optimizer]) -> None:
    """Raise ValueError for options that are invalid for every optimizer.

    Builds none: that would make torch import its compiler, which takes 3 s.
    """
    for name, value in build.keywords.items():
        for number in value if isinstance(value, tuple) else (value,):
            if not isinstance(number, int | float):  # a word, or none, for an optimizer of a plugin
                continue
            if number < 0 and (is_shipped(build) or name == 'lr'):  # others have exponents, such as `beta2_decay` of Adafactor
                raise ValueError(f'{name} cannot be negative, got {number}')
            if name in ('momentum', 'betas') and number >= 1:
                raise ValueError(f'{name} must be below 1, got {number}')


def check_schedule(build: partial[Schedule]) -> None:
    """Raise ValueError for options that are invalid for a run of any length, and for a step without a rate."""
    try:
        schedule = build(1.0, LENGTH, 1000.0, Timeline(((0, 1),)))  # as a run builds it
        rates = {at: schedule(at) if callable(schedule) else None for at in (0, LENGTH // 2, LENGTH - 1)}
    except ValueError:
        raise
    except Exception as error:  # code of a plugin may raise anything
        why = f'a trial for a run of {LENGTH} steps failed: {type(error).__name__}: {error}'
        raise ValueError(f'{why} (docs/extending.md, Optimizers)') from error
    for at, rate in rates.items():
        if not isinstance(rate, int | float) or not 0 <= rate < math.inf:
            raise ValueError(
                f'must be a function of the step (from 0) that returns the rate, at least 0; for step {at} it is {rate!r}'
            )
