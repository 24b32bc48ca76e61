"""Steps and samples of a run whose global batch changes from start to start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.samples import Draw
from phalanx.engine.loader import Stream
from phalanx.engine.optim.schedule import constant, cosine, piecewise, polynomial, step
from phalanx.engine.timeline import Length, Timeline

SEED = 7


def timelines(batches: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, Timeline]]:
    """The first step and the timeline of each of several starts of one run: `lengths[i]` steps of `batches[i]` samples."""
    first, found = 0, list[tuple[int, Timeline]]()
    for batch, length in zip(batches, lengths, strict=True):
        before = found[-1][1].batches if found else ()
        found.append((first, Timeline.resume(before, first, batch, in_epochs=True)))
        first += length
    return found


def draws(size: int, epochs: float, ranks: Sequence[int], per_rank: int, lengths: Sequence[int]) -> list[Draw]:
    """The samples that all ranks read, in order. `lengths`: the steps of each start but the last, which ends the run."""
    found = list[Draw]()
    of_starts = timelines([world * per_rank for world in ranks], [*lengths, 0])
    for (first, timeline), world, length in zip(of_starts, ranks, [*lengths, None], strict=True):
        batch, last = world * per_rank, timeline.last_step(epochs, size)
        streams = [Stream(size, batch, 1, SEED, rank, world, timeline.offset) for rank in range(world)]
        for each in range(first, last if length is None else min(first + length, last)):
            found += [draw for stream in streams for draw in stream.share(each)]
    return found


@given(
    size=st.integers(1, 40),
    ranks=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    per_rank=st.integers(1, 4),
    data=st.data(),
)
def test_each_sample_of_an_epoch_is_seen_once_whatever_the_numbers_of_ranks(
    size: int, ranks: list[int], per_rank: int, data: st.DataObject
) -> None:
    epochs, others = 3, len(ranks) - 1
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=others, max_size=others))
    seen = draws(size, epochs, ranks, per_rank, lengths)
    times = Counter((draw.epoch, draw.index) for draw in seen)
    assert {times.pop((epoch, index)) for epoch in range(epochs) for index in range(size)} == {1}
    assert sum(times.values()) < max(ranks) * per_rank  # of the last batch, which the end of the last epoch does not fill


def test_ranks_that_come_and_go_see_as_many_samples_as_one_that_stays() -> None:
    """Two epochs of 24: 3 steps of 2, 3 of 4, 3 of 6, and 6 of 2 for the 12 that are left."""
    seen = draws(24, 2, ranks=(1, 2, 3, 1), per_rank=2, lengths=(3, 3, 3))
    alone = draws(24, 2, ranks=(1,), per_rank=2, lengths=())
    assert [(draw.epoch, draw.index) for draw in seen] == [(draw.epoch, draw.index) for draw in alone]
    assert timelines([2, 4, 6, 2], [3, 3, 3, 6])[-1][1] == Timeline(((0, 2), (3, 4), (6, 6), (9, 2)), in_epochs=True)
    assert timelines([2, 4, 6, 2], [3, 3, 3, 6])[-1][1].last_step(2, 24) == 15


def test_a_start_without_a_step_leaves_no_trace() -> None:
    assert timelines([4, 8, 4], [2, 0, 0])[-1][1].batches == ((0, 4),)


def test_a_run_that_ended_has_no_more_steps_with_another_batch() -> None:
    """4 steps of 8 were made for 25 samples: 7 more than one epoch."""
    assert Timeline(((0, 8), (4, 4))).last_step(1, 25) == 4


def test_unknown_batches_of_earlier_starts_are_taken_to_be_those_of_this_one() -> None:
    """A checkpoint of a version that did not keep them."""
    assert Timeline.resume((), 5, 4, in_epochs=True).batches == ((0, 4),)


CHANGED = Timeline(((0, 8), (4, 4)), in_epochs=True)  # 32 samples in 4 steps, then 4 each


def test_samples_and_steps_by_hand() -> None:
    assert [CHANGED.samples(at) for at in (0, 3, 4, 5, 8)] == [0, 24, 32, 36, 48]
    assert [CHANGED.equivalent_steps(at) for at in (0, 3, 4, 5, 8)] == [0, 6, 8, 9, 12]
    assert [CHANGED.step_of(even) for even in (0, 1, 6, 8, 9, 12)] == [0, 0.5, 3, 4, 5, 8]


def test_an_interval_in_steps_counts_updates_and_one_in_epochs_samples() -> None:
    """Every epoch of 24 samples is 6 steps of 4: after 24 samples (step 3), 48 (8) and 72 (14)."""
    updates, samples = Length(3), Length(6, CHANGED)
    assert [at for at in range(1, 16) if updates.is_completed_at(at)] == [3, 6, 9, 12, 15]
    assert [at for at in range(1, 16) if samples.is_completed_at(at)] == [3, 8, 14]
    assert not any(Length(0, CHANGED).is_completed_at(at) for at in range(1, 16))


@given(every=st.integers(1, 9), batch=st.integers(1, 9), at=st.integers(1, 50))
def test_without_a_change_both_kinds_of_intervals_are_multiples(every: int, batch: int, at: int) -> None:
    timeline = Timeline(((0, batch),))
    assert Length(every).is_completed_at(at) == Length(every, timeline).is_completed_at(at) == (at % every == 0)


EPOCH = 48  # samples
IN_EPOCHS = {
    'constant': lambda *run: constant(0.1, *run, warmup_epochs=1),
    'polynomial': lambda *run: polynomial(0.1, *run, power=0.9, warmup_epochs=1.5),
    'cosine': lambda *run: cosine(0.1, *run, epochs=3, warmup_epochs=0.5),
    'step': lambda *run: step(0.1, *run, every_epochs=1, warmup_epochs=1),
    'piecewise': lambda *run: piecewise(0.1, *run, boundary_epochs=(1, 2.5), factors=(0.5, 0.1)),
}


@pytest.mark.parametrize('name', IN_EPOCHS)
def test_a_rate_in_epochs_is_a_function_of_the_samples_seen(name: str) -> None:
    """Of 4 epochs: 3 steps of 8, 12 of 4, 2 of 12, 12 of 8. Compared with a run of 4 a step throughout."""
    alone = IN_EPOCHS[name](4 * EPOCH // 4, EPOCH / 4, Timeline(((0, 4),), in_epochs=True))
    seen = 0
    lengths = (3, 12, 2, 12)
    for (first, timeline), length in zip(timelines([8, 4, 12, 8], lengths), lengths, strict=True):
        batch = timeline.global_batch_size
        rate = IN_EPOCHS[name](4 * EPOCH // batch, EPOCH / batch, timeline)
        for at in range(first, first + length):
            assert rate(at) == pytest.approx(alone(seen / 4), rel=1e-12), at
            seen += batch
    assert seen == 4 * EPOCH


def test_a_warm_up_in_steps_counts_updates_while_the_curve_counts_samples() -> None:
    """Halved batches after 4 of 8 steps of warm-up: it goes on at a half, and ends at step 8, after 48 of 96 samples."""
    before = polynomial(1.0, 12, 6.0, Timeline(((0, 8),), in_epochs=True), warmup_steps=8)
    after = polynomial(1.0, 24, 12.0, CHANGED, warmup_steps=8)
    assert before(4) == after(4) == 0.5
    assert [after(at) for at in (6, 8, 14, 20)] == pytest.approx([0.75, 1, 0.5, 0])


def test_the_curve_of_a_run_that_counts_steps_continues_by_steps() -> None:
    counted = Timeline(CHANGED.batches, in_epochs=False)
    assert [polynomial(1.0, 8, 12.0, counted)(at) for at in range(9)] == [polynomial(1.0, 8, 12.0)(at) for at in range(9)]


@given(batch=st.integers(1, 9), size=st.integers(1, 50), at=st.integers(0, 400))
@pytest.mark.parametrize('name', IN_EPOCHS)
def test_without_a_change_rates_are_the_same_bit_for_bit(name: str, batch: int, size: int, at: int) -> None:
    timeline = Timeline(((0, batch),), in_epochs=True)
    run = (-(-4 * size // batch), max(size / batch, 1.0))
    assert IN_EPOCHS[name](*run, timeline)(at) == IN_EPOCHS[name](*run)(at)


def test_an_update_counts_for_the_ema_as_the_samples_that_it_sees() -> None:
    """Batches of 4, then 8, then 2; in a length of steps, updates count alike."""
    shares = [timeline.ema_share for _, timeline in timelines([4, 8, 2], [5, 5, 5])]
    assert shares == [1.0, 2.0, 0.5]
    assert Timeline.resume([(0, 4)], 5, 8, in_epochs=False).ema_share == 1.0
