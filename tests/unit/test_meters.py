"""Which ranks are slow, by hand."""

from phalanx.meters import slower_ranks


def test_a_rank_is_slow_in_the_phase_in_which_the_others_are_not() -> None:
    """Medians: reading 1, predicting 10. Rank 1 reads 4 s too long, of 11; rank 2 0.6 s, too little to tell."""
    ranks = [
        {'reading': read, 'predicting': predicted} for read, predicted in ((1.0, 10.0), (5.0, 9.0), (1.6, 12.0), (0.9, 10.0))
    ]
    assert slower_ranks(ranks) == ['rank 1 is slower than the others: reading took it 5 s, the median rank 1 s']


def test_of_two_ranks_the_slower_is_told() -> None:
    assert slower_ranks([{'predicting': 3.0}, {'predicting': 2.0}]) == []  # 1.5 times, not more
    (told,) = slower_ranks([{'predicting': 3.1}, {'predicting': 2.0}])
    assert told.startswith('rank 0 ')


def test_a_rank_alone_is_never_slow() -> None:
    assert slower_ranks([{'predicting': 3.0, 'reading': 0.0}]) == []
