"""Learning rate as a pure function of the step: no state to save or restore.

Each builder takes the base rate, the steps of the run, the steps per epoch and the timeline of a run whose global batch may
have changed, and returns a function of the step (from 0). Four conventions hold for all of them.

- Positions and lengths (`epochs: 360`, `boundaries: [60000]`) count from the start of training, warm-up included.
  PaddleSeg's and PaddleOCR's schedulers count piecewise boundaries, and PaddleOCR's also the length of a cosine, from the end
  of the warm-up: add the warm-up to those.
- During warm-up the rate is a straight line from `warmup_start_lr`, at step 0, to the value of the schedule at the first step
  after it. A curve (polynomial, cosine) begins there: it is stretched from the end of the warm-up to its own end.
- After its end a curve stays at its last value.
- After a change of the global batch, lengths in steps keep counting updates, and lengths in epochs keep counting samples:
  neither jumps.
"""

import math
from bisect import bisect_right
from collections.abc import Callable

from phalanx.engine.timeline import Length, Timeline, in_steps

Schedule = Callable[[float], float]  # step -> learning rate


def constant(
    lr: float,
    length: int,
    steps_per_epoch: float,
    timeline: Timeline | None = None,
    *,
    warmup_steps: int | None = None,
    warmup_epochs: float | None = None,
    warmup_start_lr: float = 0.0,
) -> Schedule:
    """Base rate throughout."""
    warmup = _length('warm-up', warmup_steps, warmup_epochs, steps_per_epoch, timeline)
    return _add_warmup(lambda step: lr, warmup, warmup_start_lr)


def polynomial(
    lr: float,
    length: int,
    steps_per_epoch: float,
    timeline: Timeline | None = None,
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

    The curve ends after `steps` or `epochs`; by default at the end of training.
    """
    _not_negative('power', power)
    _not_negative('end_lr', end_lr)
    warmup = _length('warm-up', warmup_steps, warmup_epochs, steps_per_epoch, timeline)
    end = _length('curve', steps, epochs, steps_per_epoch, timeline, default=length)
    return _add_warmup(
        lambda step: (lr - end_lr) * (1 - _progress(step, warmup, end)) ** power + end_lr, warmup, warmup_start_lr
    )


def exponential(
    lr: float,
    length: int,
    steps_per_epoch: float,
    timeline: Timeline | None = None,
    *,
    factor: float,
    steps: int | None = None,
    epochs: float | None = None,
    warmup_steps: int | None = None,
    warmup_epochs: float | None = None,
    warmup_start_lr: float = 0.0,
) -> Schedule:
    """`lr * factor ** progress`: a straight line in a plot of the logarithm, down or up (a learning-rate range test).

    The curve ends after `steps` or `epochs`; by default at the end of training.
    """
    if factor <= 0:
        raise ValueError(f'factor must be above 0, got {factor}')
    warmup = _length('warm-up', warmup_steps, warmup_epochs, steps_per_epoch, timeline)
    end = _length('curve', steps, epochs, steps_per_epoch, timeline, default=length)
    return _add_warmup(lambda step: lr * factor ** _progress(step, warmup, end), warmup, warmup_start_lr)


def cosine(
    lr: float,
    length: int,
    steps_per_epoch: float,
    timeline: Timeline | None = None,
    *,
    end_lr: float = 0.0,
    steps: int | None = None,
    epochs: float | None = None,
    flat_epochs: float = 0.0,
    warmup_steps: int | None = None,
    warmup_epochs: float | None = None,
    warmup_start_lr: float = 0.0,
    warmup_power: float = 1.0,
) -> Schedule:
    """Half a cosine wave from `lr` down to `end_lr` (Loshchilov & Hutter, SGDR, without restarts).

    The curve ends after `steps` or `epochs`; by default at the end of training. PP-YOLOE trains for 300 epochs of a curve of
    360. With `flat_epochs`, counted from the start of training, it begins after them (RTMDet, DEIM). During warm-up, the rate
    follows the share of it that is completed to the power of `warmup_power`.
    """
    _not_negative('end_lr', end_lr)
    _not_negative('flat_epochs', flat_epochs)
    _not_negative('warmup_power', warmup_power)
    warmup = _length('warm-up', warmup_steps, warmup_epochs, steps_per_epoch, timeline)
    end = _length('curve', steps, epochs, steps_per_epoch, timeline, default=length)
    flat = Length(in_steps(flat_epochs, steps_per_epoch), timeline)
    start = max(warmup, flat, key=lambda length: length.end)

    def curve(step: float) -> float:
        return (lr - end_lr) * 0.5 * (1 + math.cos(math.pi * _progress(step, start, end))) + end_lr

    return _add_warmup(curve, warmup, warmup_start_lr, warmup_power)


def step(
    lr: float,
    length: int,
    steps_per_epoch: float,
    timeline: Timeline | None = None,
    *,
    every: int | None = None,
    every_epochs: float | None = None,
    gamma: float = 0.1,
    warmup_steps: int | None = None,
    warmup_epochs: float | None = None,
    warmup_start_lr: float = 0.0,
) -> Schedule:
    """Base rate times `gamma` at every multiple of `every` steps or `every_epochs` epochs."""
    _not_negative('gamma', gamma)
    warmup = _length('warm-up', warmup_steps, warmup_epochs, steps_per_epoch, timeline)
    interval = _length('interval', every, every_epochs, steps_per_epoch, timeline)
    if interval.steps < 1:
        raise ValueError('the step schedule needs `every` or `every_epochs`, at least one step long')
    return _add_warmup(lambda step: lr * gamma ** (interval.elapsed(step) // interval.steps), warmup, warmup_start_lr)


def piecewise(
    lr: float,
    length: int,
    steps_per_epoch: float,
    timeline: Timeline | None = None,
    *,
    factors: tuple[float, ...],
    boundaries: tuple[int, ...] | None = None,
    boundary_epochs: tuple[float, ...] | None = None,
    warmup_steps: int | None = None,
    warmup_epochs: float | None = None,
    warmup_start_lr: float = 0.0,
) -> Schedule:
    """Base rate up to the first boundary; from boundary i on, the base rate times `factors[i]` (not cumulative).

    Boundaries are steps, or epochs in `boundary_epochs`.
    """
    if (boundaries is None) == (boundary_epochs is None):
        raise ValueError('the piecewise schedule needs either `boundaries` (steps) or `boundary_epochs`')
    at = list(boundaries) if boundaries is not None else [in_steps(epochs, steps_per_epoch) for epochs in boundary_epochs or ()]
    if len(at) != len(factors):
        raise ValueError(
            f'the piecewise schedule needs one factor per boundary, got {len(at)} boundaries and {len(factors)} factors'
        )
    if at != sorted(at) or min(at, default=0) < 0:
        raise ValueError(
            f'the boundaries of the piecewise schedule must ascend from 0, got {list(boundaries or boundary_epochs or ())}'
        )
    for factor in factors:
        _not_negative('factors', factor)
    # Boundaries in epochs count samples, so that they keep their place when the global batch changes.
    warmup = _length('warm-up', warmup_steps, warmup_epochs, steps_per_epoch, timeline)
    rates = [lr, *(lr * factor for factor in factors)]
    counter = Length(0, timeline if boundaries is None else None)
    return _add_warmup(lambda step: rates[bisect_right(at, counter.elapsed(step))], warmup, warmup_start_lr)


def _add_warmup(curve: Schedule, warmup: Length, start_lr: float, power: float = 1.0) -> Schedule:
    """Return `curve` with its first steps replaced by a straight line from `start_lr` to the value of `curve` at the end of
    `warmup`; by the share of it to the power of `power`.
    """
    _not_negative('warmup_start_lr', start_lr)

    def schedule(step: float) -> float:
        if step >= warmup.end:
            return curve(step)
        return start_lr + (curve(warmup.end) - start_lr) * math.pow(warmup.elapsed(step) / warmup.steps, power)

    return schedule


def _progress(step: float, before: Length, end: Length) -> float:
    """Share of a curve, from the end of `before` (the warm-up) to `end`, that is completed at `step`, 0 .. 1."""
    # The curve is stretched: it begins at the end of the warm-up and still ends where it would without one.
    start = end.elapsed(before.end)
    return min(max(end.elapsed(step) - start, 0.0) / max(end.steps - start, 1), 1.0)


def _length(
    what: str, steps: int | None, epochs: float | None, steps_per_epoch: float, timeline: Timeline | None, default: int = 0
) -> Length:
    """Length given in steps or in epochs; with neither, `default` steps, in the unit of the run's length."""
    if steps is not None and epochs is not None:
        raise ValueError(f'the {what} is set in steps ({steps}) and in epochs ({epochs}); set only one of them')
    _not_negative(what, steps or epochs or 0)
    if steps is not None:
        return Length(steps)
    if epochs is not None:
        return Length(in_steps(epochs, steps_per_epoch), timeline)
    # Without a length of its own, a curve ends with the run, in the unit that the run is measured in.
    return Length(default, timeline if timeline is not None and timeline.in_epochs else None)


def _not_negative(what: str, value: float) -> None:
    if not value >= 0:  # false for NaN too
        raise ValueError(f'{what} of the learning-rate schedule cannot be negative, got {value}')
