"""Reports of slow ranks, waits for data and diverging losses, computed by hand."""

import pytest

from phalanx.engine.meters import WARMUP_S, Stopwatch, slower_ranks


def test_a_rank_is_slow_in_the_phase_in_which_the_others_are_not() -> None:
    """Medians: reading 1, predicting 10. Rank 1 reads 4 s too long, of 11; rank 2 0.6 s, too little to tell."""
    ranks = [
        {'reading': read, 'predicting': predicted} for read, predicted in ((1.0, 10.0), (5.0, 9.0), (1.6, 12.0), (0.9, 10.0))
    ]
    assert slower_ranks(ranks) == ['rank 1 is slower than the others: reading took 5 s, 1 s on the median rank']


def test_of_two_ranks_the_slower_is_reported() -> None:
    assert slower_ranks([{'predicting': 3.0}, {'predicting': 2.0}]) == []  # 1.5 times, not more
    (warning,) = slower_ranks([{'predicting': 3.1}, {'predicting': 2.0}])
    assert warning.startswith('rank 0 ')


def test_a_difference_below_a_second_is_chance() -> None:
    assert slower_ranks([{'reading': 1.07}, {'reading': 0.08}]) == []


def test_a_rank_alone_is_never_slow() -> None:
    assert slower_ranks([{'predicting': 3.0, 'reading': 0.0}]) == []


def laps(*laps: tuple[float, float]) -> list[str | None]:
    """Warning of a clock after each lap, given as (seconds, seconds of them spent waiting)."""
    clock, warnings = Stopwatch(), []
    for seconds, waited in laps:
        clock.total_seconds += seconds
        clock.total_waited += waited
        warnings.append(clock.data_wait_warning())
    return warnings


def test_a_run_that_waits_for_data_is_reported_once_after_its_start() -> None:
    before, then, after = laps((WARMUP_S - 1, WARMUP_S - 1), (WARMUP_S, 0), (WARMUP_S, WARMUP_S))
    assert before is None and after is None
    assert then is not None and then.startswith('50% of the time so far was spent waiting for data: more train.workers help')


@pytest.mark.parametrize('waited', [0, 0.1 * WARMUP_S])
def test_a_start_with_cold_workers_is_not_reported_as_waiting(waited: float) -> None:
    assert laps((30, 30 if waited else 0), (WARMUP_S - 30, waited - 30 if waited else 0)) == [None, None]
