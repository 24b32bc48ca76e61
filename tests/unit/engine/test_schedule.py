"""Learning-rate schedules: hand-computed rates, and what is reported about wrong settings."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from phalanx.engine.optim.schedule import Schedule, constant, cosine, exponential, piecewise, polynomial, step
from phalanx.engine.timeline import in_steps

TABLE = [
    (constant(0.1, 10, 5), {0: 0.1, 99: 0.1}, 'constant'),
    (constant(0.1, 10, 5, warmup_steps=4), {0: 0, 1: 0.025, 3: 0.075, 4: 0.1}, 'warm-up from nothing'),
    (constant(0.1, 10, 5, warmup_epochs=0.4, warmup_start_lr=0.05), {0: 0.05, 1: 0.075, 2: 0.1}, 'warm-up in epochs'),
    (constant(0.1, 3, 5, warmup_steps=10), {0: 0, 2: 0.02}, 'a run shorter than its warm-up'),
    (polynomial(1.0, 10, 5), {0: 1, 5: 0.5, 10: 0, 12: 0}, 'a straight line, then its last value'),
    (polynomial(1.0, 10, 5, power=2, end_lr=0.2), {5: 0.4, 10: 0.2}, '0.8 x 0.25 + 0.2'),
    (polynomial(1.0, 10, 5, steps=20), {10: 0.5}, 'a curve twice as long as training'),
    (polynomial(1.0, 12, 5, warmup_steps=2), {1: 0.5, 2: 1, 7: 0.5, 12: 0}, 'the curve begins after the warm-up'),
    (polynomial(1.0, 3, 5, warmup_steps=5), {5: 1, 6: 0}, 'a curve that ends before its warm-up'),
    (exponential(1e-4, 4, 4, factor=1e4), {0: 1e-4, 1: 1e-3, 3: 0.1, 4: 1, 5: 1}, 'ten times per step'),
    (cosine(2.0, 12, 6), {0: 2, 4: 1.5, 6: 1, 8: 0.5, 12: 0}, 'cos 60 degrees is a half'),
    (cosine(2.0, 99, 6, epochs=2, end_lr=1.0), {6: 1.5, 12: 1, 20: 1}, 'down to end_lr'),
    (cosine(2.0, 12, 2, flat_epochs=2, epochs=5), {0: 2, 4: 2, 7: 1, 10: 0, 12: 0}, 'flat for 4 steps, then down within 6'),
    (
        cosine(2.0, 12, 2, flat_epochs=2, epochs=5, warmup_steps=2, warmup_power=2),
        {0: 0, 1: 0.5, 2: 2, 4: 2, 7: 1},
        'a warm-up by the square, within the flat part',
    ),
    (step(1.0, 99, 5, every=3, gamma=0.5), {0: 1, 2: 1, 3: 0.5, 6: 0.25}, 'halved every 3 steps'),
    (step(1.0, 99, 5, every_epochs=2), {9: 1, 10: 0.1}, 'every 2 epochs'),
    (step(1.0, 99, 5, every=2, gamma=0.5, warmup_steps=4), {2: 0.125, 4: 0.25}, 'warm-up leads to where the schedule stands'),
    (piecewise(2.0, 99, 5, boundaries=(3, 6), factors=(0.5, 0.1)), {2: 2, 3: 1, 5: 1, 6: 0.2}, 'factors of the base rate'),
    (piecewise(2.0, 99, 5, boundary_epochs=(1.0,), factors=(0.5,)), {4: 2, 5: 1}, 'boundaries in epochs'),
]


@pytest.mark.parametrize(('schedule', 'expected'), [row[:2] for row in TABLE], ids=[row[2] for row in TABLE])
def test_rates_by_hand(schedule: Schedule, expected: dict[int, float]) -> None:
    assert {at: schedule(at) for at in expected} == pytest.approx(expected, abs=1e-15)


WRONG = [
    (
        lambda: constant(1, 9, 5, warmup_steps=3, warmup_epochs=1),
        'the warm-up is set in steps (3) and in epochs (1); set only one of them',
    ),
    (lambda: constant(1, 9, 5, warmup_steps=-3), 'warm-up of the learning-rate schedule cannot be negative, got -3'),
    (
        lambda: constant(1, 9, 5, warmup_start_lr=-0.1),
        'warmup_start_lr of the learning-rate schedule cannot be negative, got -0.1',
    ),
    (lambda: cosine(1, 9, 5, end_lr=-1), 'end_lr of the learning-rate schedule cannot be negative, got -1'),
    (lambda: polynomial(1, 9, 5, power=-2), 'power of the learning-rate schedule cannot be negative, got -2'),
    (lambda: step(1, 9, 5), 'the step schedule needs `every` or `every_epochs`, at least one step long'),
    (
        lambda: piecewise(1, 9, 5, factors=(0.1,)),
        'the piecewise schedule needs either `boundaries` (steps) or `boundary_epochs`',
    ),
    (
        lambda: piecewise(1, 9, 5, boundaries=(3, 6), factors=(0.1,)),
        'the piecewise schedule needs one factor per boundary, got 2 boundaries and 1 factors',
    ),
    (
        lambda: piecewise(1, 9, 5, boundaries=(6, 3), factors=(0.1, 0.1)),
        'the boundaries of the piecewise schedule must ascend from 0, got [6, 3]',
    ),
]


@pytest.mark.parametrize(('build', 'message'), WRONG)
def test_a_wrong_setting_is_named(build: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(ValueError, match=f'^{re.escape(message)}$'):
        build()


def test_a_step_that_was_begun_counts_for_an_epoch() -> None:
    assert in_steps(1, 2.5) == 3
    assert in_steps(2, 2.5) == 5
    assert in_steps(0.1, 30) == 3  # although 0.1 x 30 is a little more than 3 in floating point
