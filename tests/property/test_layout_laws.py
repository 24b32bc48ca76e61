"""Blocks of rows, against their definition applied row by row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from phalanx.runtime import layout
from phalanx.runtime.layout import Column, Placed, Row, blocks_of, order_rows
from phalanx.runtime.layout import enter as enter_text
from phalanx.runtime.results import Line


def row(number: int, spans: Sequence[tuple[float, float]]) -> Row:
    texts = [
        Placed(Line(f'{number}.{place}', 1.0, 1.0, ()), left, right, number, 0.4) for place, (left, right) in enumerate(spans)
    ]
    return sorted(texts, key=lambda text: text.left)


spans = st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
pages = st.lists(st.lists(spans, min_size=1, max_size=3), max_size=12).map(
    lambda rows: [row(number, each) for number, each in enumerate(rows)]
)


def columns(texts: Sequence[Placed]) -> list[set[str]]:
    """Columns as sets of texts: two texts are in one if they overlap, or if a chain of overlapping texts joins them."""
    groups = [{text.line.text} for text in texts]
    for one, other in combinations(texts, 2):
        if one.left < other.right and other.left < one.right:
            joined = [group for group in groups if {one.line.text, other.line.text} & group]
            groups = [*(group for group in groups if group not in joined), set().union(*joined)]
    return groups


def is_block(rows: Sequence[Row]) -> bool:
    """True if each row has at most one text per column, and rows of several texts alone have as many columns."""
    found = columns(list(chain(*rows)))
    alone = columns([text for row in rows if len(row) > 1 for text in row])
    at_most_one = all(len({text.line.text for text in row} & column) <= 1 for row in rows for column in found)
    return at_most_one and len(alone) in (0, len(found))


@given(pages)
def test_a_row_joins_the_block_above_if_the_result_is_a_block(rows: list[Row]) -> None:
    expected: list[list[Row]] = []
    for each in rows:
        if expected and is_block([*expected[-1], each]):
            expected[-1].append(each)
        else:
            expected.append([each])
    assert blocks_of(rows) == expected


@given(pages)
def test_no_text_is_lost_and_none_is_doubled(rows: list[Row]) -> None:
    """Two texts of a row may overlap, as boxes of a detector do."""
    ordered = [line.text for each in order_rows(rows) for line in each if line]
    assert sorted(ordered) == sorted(text.line.text for each in rows for text in each)


def test_the_work_for_a_page_grows_with_its_rows(monkeypatch: Any) -> None:
    """Texts are entered into columns, per row no more often on a long page, also where each row starts a column."""
    entered: list[Placed] = []

    def enter(columns: list[Column], text: Placed, number: int) -> bool:
        entered.append(text)
        return enter_text(columns, text, number)

    monkeypatch.setattr(layout, 'enter', enter)

    def count(rows: list[Row]) -> int:
        entered.clear()
        blocks_of(rows)
        return len(entered)

    for spans_of in (lambda _: [(0, 8), (10, 18), (20, 28)], lambda number: [(10 * number, 10 * number + 8)]):
        short, long = (count([row(number, spans_of(number)) for number in range(rows)]) for rows in (50, 400))
        assert long <= 8 * short
