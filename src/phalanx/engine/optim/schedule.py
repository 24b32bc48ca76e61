"""The learning rate as a pure function of the step: nothing to save, nothing to restore.

Each builder takes the base rate, the steps of the run and the steps of an epoch, and gives a function of the step (from 0).
Three conventions hold for all of them.

- Where and how long something is (`epochs: 360`, `boundaries: [60000]`) counts from the start of training, warm-up included.
  PaddleSeg's and PaddleOCR's schedulers count piecewise boundaries, and PaddleOCR's also the length of a cosine, from the end
  of the warm-up: there, add the warm-up.
- During warm-up the rate is a straight line from `warmup_start_lr`, at step 0, to what the schedule says at the first step
  after it. A curve (polynomial, cosine) begins there: it is stretched from the end of the warm-up to its own end.
- After its end a curve stays at its last value.
"""

import math
from bisect import bisect_right
from collections.abc import Callable

Schedule = Callable[[int], float]  # step -> learning rate


def constant(
    lr: float,
    length: int,
    steps_per_epoch: float,
    *,
    warmup_steps: int | None = None,
    warmup_epochs: float | None = None,
    warmup_start_lr: float = 0.0,
) -> Schedule:
    """The base rate throughout."""
    warmup = _steps('warm-up', warmup_steps, warmup_epochs, steps_per_epoch, default=0)
    return _warmed_up(lambda step: lr, warmup, warmup_start_lr)


def polynomial(
    lr: float,
    length: int,
    steps_per_epoch: float,
    *,
    power: float = 1.0,
    end_lr: float = 0.0,
    steps: int | None = None,
    epochs: float | None = None,
    warmup_steps: int | None = None,
    warmup_epochs: float | None = None,
    warmup_start_lr: float = 0.0,
) -> Schedule:
    """`(lr - end_lr) * (1 - progress) ** power + end_lr`; power 1 is a straight line.

    The curve ends after `steps` or `epochs`, with neither at the end of training.
    """
    _not_negative('power', power)
    _not_negative('end_lr', end_lr)
    warmup = _steps('warm-up', warmup_steps, warmup_epochs, steps_per_epoch, default=0)
    end = _steps('curve', steps, epochs, steps_per_epoch, default=length)
    return _warmed_up(
        lambda step: (lr - end_lr) * (1 - _progress(step, warmup, end)) ** power + end_lr, warmup, warmup_start_lr
    )


def cosine(
    lr: float,
    length: int,
    steps_per_epoch: float,
    *,
    end_lr: float = 0.0,
    steps: int | None = None,
    epochs: float | None = None,
    warmup_steps: int | None = None,
    warmup_epochs: float | None = None,
    warmup_start_lr: float = 0.0,
) -> Schedule:
    """Half a cosine wave from `lr` down to `end_lr` (Loshchilov & Hutter, SGDR, without restarts).

    The curve ends after `steps` or `epochs`, with neither at the end of training; PP-YOLOE trains 300 epochs of a curve of 360.
    """
    _not_negative('end_lr', end_lr)
    warmup = _steps('warm-up', warmup_steps, warmup_epochs, steps_per_epoch, default=0)
    end = _steps('curve', steps, epochs, steps_per_epoch, default=length)

    def curve(step: int) -> float:
        return (lr - end_lr) * 0.5 * (1 + math.cos(math.pi * _progress(step, warmup, end))) + end_lr

    return _warmed_up(curve, warmup, warmup_start_lr)


def step(
    lr: float,
    length: int,
    steps_per_epoch: float,
    *,
    every: int | None = None,
    every_epochs: float | None = None,
    gamma: float = 0.1,
    warmup_steps: int | None = None,
    warmup_epochs: float | None = None,
    warmup_start_lr: float = 0.0,
) -> Schedule:
    """The rate times `gamma` at every multiple of `every` steps, or of `every_epochs`."""
    _not_negative('gamma', gamma)
    warmup = _steps('warm-up', warmup_steps, warmup_epochs, steps_per_epoch, default=0)
    interval = _steps('interval', every, every_epochs, steps_per_epoch, default=0)
    if interval < 1:
        raise ValueError('the step schedule needs `every` or `every_epochs`, and at least one step of it')
    return _warmed_up(lambda step: lr * gamma ** (step // interval), warmup, warmup_start_lr)


def piecewise(
    lr: float,
    length: int,
    steps_per_epoch: float,
    *,
    factors: tuple[float, ...],
    boundaries: tuple[int, ...] | None = None,
    boundary_epochs: tuple[float, ...] | None = None,
    warmup_steps: int | None = None,
    warmup_epochs: float | None = None,
    warmup_start_lr: float = 0.0,
) -> Schedule:
    """The base rate up to the first boundary, and from boundary i on the base rate times `factors[i]` (not multiplied up).

    Boundaries are steps, or epochs in `boundary_epochs`.
    """
    if (boundaries is None) == (boundary_epochs is None):
        raise ValueError('the piecewise schedule needs either `boundaries` (steps) or `boundary_epochs`')
    at = list(boundaries) if boundaries is not None else [in_steps(epochs, steps_per_epoch) for epochs in boundary_epochs or ()]
    if len(at) != len(factors):
        raise ValueError(
            f'the piecewise schedule needs one factor a boundary, got {len(at)} boundaries and {len(factors)} factors'
        )
    if at != sorted(at) or min(at, default=0) < 0:
        raise ValueError(
            f'the boundaries of the piecewise schedule must rise from 0 on, got {list(boundaries or boundary_epochs or ())}'
        )
    for factor in factors:
        _not_negative('factors', factor)
    warmup = _steps('warm-up', warmup_steps, warmup_epochs, steps_per_epoch, default=0)
    rates = [lr, *(lr * factor for factor in factors)]
    return _warmed_up(lambda step: rates[bisect_right(at, step)], warmup, warmup_start_lr)


def in_steps(epochs: float, steps_per_epoch: float) -> int:
    """The number of steps that make `epochs` passes over the data set; a step that was begun counts."""
    return math.ceil(epochs * steps_per_epoch - 1e-9)  # 0.1 x 30 is a little more than 3


def _warmed_up(curve: Schedule, warmup: int, start_lr: float) -> Schedule:
    """`curve` with its first `warmup` steps replaced by a straight line from `start_lr` to where it then stands."""
    _not_negative('warmup_start_lr', start_lr)

    def schedule(step: int) -> float:
        if step >= warmup:
            return curve(step)
        return start_lr + (curve(warmup) - start_lr) * step / warmup

    return schedule


def _progress(step: int, start: int, end: int) -> float:
    """How much of a curve from `start` to `end` lies behind, 0 .. 1. A run shorter than its warm-up never asks."""
    return min((step - start) / max(end - start, 1), 1.0)


def _steps(what: str, steps: int | None, epochs: float | None, steps_per_epoch: float, default: int) -> int:
    """A length given in steps or in epochs, in steps."""
    if steps is not None and epochs is not None:
        raise ValueError(f'the {what} is given in steps ({steps}) and in epochs ({epochs}); give one of them')
    _not_negative(what, steps or epochs or 0)
    if steps is not None:
        return steps
    return default if epochs is None else in_steps(epochs, steps_per_epoch)


def _not_negative(what: str, value: float) -> None:
    if not value >= 0:  # false for NaN too
        raise ValueError(f'{what} of the learning-rate schedule cannot be negative, got {value}')
