"""Laws of every learning-rate schedule, over generated settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.engine.optim import SCHEDULES
from phalanx.engine.optim.schedule import Schedule, constant, cosine, exponential, piecewise, polynomial, step

STEPS = 200  # of the runs below
PER_EPOCH = 8.5  # steps: the data set need not divide evenly


def test_every_schedule_is_tried() -> None:
    built = (constant, polynomial, exponential, cosine, step, piecewise)
    assert set(SCHEDULES.values()) == set(built)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Callable[[float], Schedule], int]:
    """A builder that only lacks the base rate, and the length of its warm-up (which starts at 0)."""
    warmup = draw(st.integers(0, 60))
    end = draw(st.none() | st.integers(1, 2 * STEPS))
    power, gamma = draw(st.floats(0.1, 3)), draw(st.floats(0, 1))
    boundaries = tuple(sorted(draw(st.lists(st.integers(0, STEPS), min_size=1, max_size=4))))
    factors = tuple(draw(st.lists(st.floats(0, 1), min_size=len(boundaries), max_size=len(boundaries))))
    every = draw(st.integers(1, STEPS))
    builders: list[Callable[[float], Schedule]] = [
        lambda lr: constant(lr, STEPS, PER_EPOCH, warmup_steps=warmup),
        lambda lr: polynomial(lr, STEPS, PER_EPOCH, power=power, steps=end, warmup_steps=warmup),
        lambda lr: exponential(lr, STEPS, PER_EPOCH, factor=max(gamma, 1e-6), steps=end, warmup_steps=warmup),
        lambda lr: cosine(lr, STEPS, PER_EPOCH, steps=end, warmup_steps=warmup),
        lambda lr: step(lr, STEPS, PER_EPOCH, every=every, gamma=gamma, warmup_steps=warmup),
        lambda lr: piecewise(lr, STEPS, PER_EPOCH, boundaries=boundaries, factors=factors, warmup_steps=warmup),
    ]
    return draw(st.sampled_from(builders)), warmup


rates = st.floats(1e-6, 10)
steps = st.integers(0, 2 * STEPS)


@given(schedules(), rates, steps)
def test_the_rate_lies_between_zero_and_the_base_rate(
    case: tuple[Callable[[float], Schedule], int], lr: float, at: int
) -> None:
    rate = case[0](lr)(at)
    assert 0 <= rate <= lr * (1 + 1e-12)


@given(schedules(), rates)
def test_the_warm_up_runs_straight_into_the_schedule(case: tuple[Callable[[float], Schedule], int], lr: float) -> None:
    """Its line, drawn on from the last two steps, meets the first rate after it."""
    build, warmup = case
    schedule = build(lr)
    if warmup >= 2:
        before = schedule(warmup - 2), schedule(warmup - 1)
        assert schedule(warmup) == pytest.approx(2 * before[1] - before[0], rel=1e-9, abs=1e-12 * lr)
        assert schedule(0) == 0


@given(schedules(), rates, steps, st.floats(0.1, 100))
def test_a_larger_base_rate_scales_the_whole_schedule(
    case: tuple[Callable[[float], Schedule], int], lr: float, at: int, factor: float
) -> None:
    build, _ = case
    assert build(factor * lr)(at) == pytest.approx(factor * build(lr)(at), rel=1e-9)


@given(schedules(), rates, st.lists(steps, min_size=1, max_size=20))
def test_the_rate_depends_on_the_step_alone(case: tuple[Callable[[float], Schedule], int], lr: float, asked: list[int]) -> None:
    """Not on which steps were asked before: a resumed run needs no state of it."""
    build, _ = case
    used = build(lr)
    assert [used(at) for at in asked] == [build(lr)(at) for at in asked]
