"""Accuracy and edit similarity of readings."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.families.recognition.metric import ReadingAccuracy
from phalanx.families.recognition.texts import Label
from phalanx.runtime.results import Reading

Pairs = list[tuple[str, str]]  # truth, reading


def metric(pairs: Pairs, unknown: int = 0, **options: bool) -> ReadingAccuracy:
    ours = ReadingAccuracy(**options)
    ours.update([Reading(read, 0.5) for _, read in pairs], batch([truth for truth, _ in pairs], unknown))
    return ours


def batch(labels: list[str], unknown: int = 0) -> SimpleNamespace:
    return SimpleNamespace(truths=[Label(text, unknown) for text in labels])


def test_accuracy_and_similarity_by_hand() -> None:
    """kitten - sitting: 3 edits of 7 characters; ab - a: 1 of 2; two of four right."""
    found = metric([('same', 'same'), ('', ''), ('kitten', 'sitting'), ('ab', 'a')]).compute()
    assert found['accuracy'] == 0.5
    assert found['edit_similarity'] == pytest.approx(1 - (3 / 7 + 1 / 2) / 4)


def test_texts_are_compared_in_one_normal_form() -> None:
    assert metric([('\u00fc', 'u\u0308'), ('\u03a9', '\u2126')]).compute()['accuracy'] == 1


@pytest.mark.parametrize(
    ('options', 'right'), [({}, 1), ({'ignore_space': False}, 0), ({'ignore_case': True}, 2), ({'alphanumeric_only': True}, 3)]
)
def test_options_select_the_ignored_differences(options: dict[str, bool], right: int) -> None:
    pairs = [('a b', 'ab'), ('Ab', 'aB'), ('$5.99', '5,99')]
    assert metric(pairs, **options).compute()['accuracy'] == pytest.approx(right / 3)


def test_unknown_characters_are_reported() -> None:
    assert metric([('a', 'a')], unknown=3).compute()['unknown_characters'] == 3


def test_an_empty_metric_is_undefined() -> None:
    expected = {'accuracy': float('nan'), 'edit_similarity': float('nan'), 'unknown_characters': 0}
    assert ReadingAccuracy().compute() == pytest.approx(expected, nan_ok=True)


def test_the_table_lists_the_most_frequent_confusions() -> None:
    """o read as 0 twice, one l missing, one space inserted."""
    pairs = [('foo', 'f00'), ('hello', 'helo'), ('ab', 'a b')]
    table = metric(pairs, ignore_space=False).table()
    assert table == [
        {'true': 'o', 'read': '0', 'times': 2},
        {'true': '(nothing)', 'read': '(blank)', 'times': 1},
        {'true': 'l', 'read': '(nothing)', 'times': 1},
    ]


texts = st.text('abc ', max_size=6)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_result_does_not_depend_on_the_order_or_the_batches(pairs: Pairs, random: st.DataObject) -> None:
    """To the last bit, because only integers are added up."""
    shuffled = list(pairs)
    random.shuffle(shuffled)
    one, several = metric(pairs), ReadingAccuracy()
    for truth, read in shuffled:
        several.update([Reading(read, 1.0)], batch([truth]))
    assert one.compute() == several.compute()
    assert one.table() == several.table()


def test_a_more_confident_wrong_reading_has_a_lower_grade() -> None:
    readings = [Reading('x', 0.25), Reading('x', 0.75), Reading('c', 0.99)]
    low, lower, right = ReadingAccuracy().update(readings, batch(['a', 'b', 'c']))
    assert low is not None and lower is not None and low.value > lower.value
    assert lower.reason == "true 'b', read 'x', confidence 75%"
    assert right is None
