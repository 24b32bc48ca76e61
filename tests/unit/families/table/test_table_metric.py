"""TEDS and the other metrics of tables.

Oracles: apted (the tree edit distance that the reference implementation of TEDS uses) with the costs of that implementation,
and numbers worked out by hand. The reference implementation itself: tests/golden/test_table_labels.py.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
from apted import APTED, Config

from phalanx.families.table.annotation import Cell, Table
from phalanx.families.table.metric import TableMetric, teds
from phalanx.families.table.metric.teds import count_elements
from phalanx.families.table.tokens import Vocabulary
from phalanx.families.table.tree import Element, build_tree
from phalanx.runtime.results import Prediction


class Costs(Config):  # type: ignore[misc]  # apted has no types
    def rename(self, one: Element, other: Element) -> float:
        if (one.tag, one.colspan, one.rowspan) != (other.tag, other.colspan, other.rowspan):
            return 1.0
        longer = max(len(one.content), len(other.content))
        return edits(one.content, other.content) / longer if longer else 0.0

    def children(self, node: Element) -> list[Element]:
        return node.children


def edits(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """The Levenshtein distance, by its recurrence."""
    row = list(range(len(other) + 1))
    for number, piece in enumerate(one, 1):
        previous, row = row, [number]
        for place, wanted in enumerate(other):
            row.append(min(previous[place] + (piece != wanted), previous[place + 1] + 1, row[place] + 1))
    return row[-1]


def by_apted(one: Element, other: Element) -> float:
    elements = max(count_elements(list(node.last_to_first())) for node in (one, other))
    return 1 - APTED(one, other, Costs()).compute_edit_distance() / elements if elements else 1.0


def any_tree(rng: random.Random, depth: int = 0) -> Element:
    """Random tree of any shape, beyond tables."""
    tag = rng.choice(['tr', 'td', 'tbody']) if depth else 'table'
    content = tuple(rng.choice(['a', 'b', 'c', '<b>']) for _ in range(rng.randint(0, 4))) if tag == 'td' else ()
    below = rng.choice([0, 0, 1, 2, 3]) if depth < 4 else 0
    return Element(tag, rng.choice([1, 1, 2]), 1, content, [any_tree(rng, depth + 1) for _ in range(below)])


def any_table(rng: random.Random) -> Element:
    """Table like those that networks predict: mostly regular, sometimes with a wrong token."""
    tokens, columns = [], rng.randint(1, 5)
    for section in rng.sample(['thead', 'tbody'], rng.randint(1, 2)):
        rows = [['<tr>', *['<td></td>'] * rng.randint(max(1, columns - 1), columns), '</tr>'] for _ in range(rng.randint(0, 5))]
        tokens += [f'<{section}>', *(token for row in rows for token in row), f'</{section}>']
    for _ in range(rng.randint(0, 2)):
        tokens.insert(rng.randrange(len(tokens)), rng.choice(['<td></td>', '<tr>', '</tr>', '<tbody>']))
    return build_tree(tokens, [rng.choices('0123', k=rng.randint(0, 5)) for _ in range(rng.randint(0, 30))])


@pytest.mark.parametrize('kind', [any_tree, any_table], ids=['trees', 'tables'])
def test_teds_is_that_of_the_exact_tree_edit_distance(kind: type) -> None:
    rng = random.Random(0)
    for _ in range(100):
        one, other = kind(rng), kind(rng)
        assert teds(one, other) == pytest.approx(by_apted(one, other), abs=1e-9)


def test_teds_is_the_same_either_way() -> None:
    rng = random.Random(1)
    for _ in range(50):
        one, other = any_table(rng), any_table(rng)
        assert teds(one, other) == pytest.approx(teds(other, one), abs=1e-12)
        assert teds(one, one) == 1


def row(*cells: tuple[str, tuple[float, float, float, float] | None]) -> Table:
    structure = ('<tr>', *('<td>', '</td>') * len(cells), '</tr>')
    return Table(structure, tuple(Cell(tuple(text), box) for text, box in cells))


@dataclass
class Truth:
    truths: tuple[Table, ...]


LEFT, RIGHT, FAR = (0, 0, 10, 10), (20, 0, 30, 10), (70, 70, 80, 80)


def predict_cells(cells: int, *boxes: tuple[float, float, float, float]) -> Prediction:
    return Prediction(('<tr>', *('<td></td>',) * cells, '</tr>'), np.array(boxes, np.float32).reshape(-1, 4), 1.0)


def score(prediction: Prediction, truth: Table, max_length: int = 500) -> dict[str, float]:
    metric = TableMetric(Vocabulary(), max_length)
    metric.update([prediction], Truth((truth,)))
    metric.gather()
    return metric.compute()


def test_accuracy_requires_every_token() -> None:
    truth = row(('a', LEFT), ('b', RIGHT))
    assert score(predict_cells(2, LEFT, RIGHT), truth) == {
        **dict.fromkeys(('accuracy', 'teds', 'teds_structure', 'cell_precision', 'cell_recall'), 1),
        'too_long': 0,
    }
    assert score(predict_cells(1, LEFT), truth)['accuracy'] == 0


def test_a_text_is_assigned_to_the_cell_whose_box_contains_it() -> None:
    """By hand: 3 elements; swapped texts of one character cost 1 in each cell, so TEDS is 1 - 2/3."""
    scores = score(predict_cells(2, RIGHT, LEFT), row(('a', LEFT), ('b', RIGHT)))
    assert scores['accuracy'] == scores['teds_structure'] == scores['cell_recall'] == 1
    assert scores['teds'] == pytest.approx(1 / 3)


def test_a_text_outside_all_boxes_is_assigned_to_the_nearest_cell() -> None:
    """By hand: both texts are in the second cell, `ab` where `b` is right: 1/2, and an empty cell where `a` is right: 1."""
    scores = score(predict_cells(2, FAR, (20, 20, 30, 30)), row(('a', LEFT), ('b', RIGHT)))
    assert scores['teds'] == pytest.approx(1 - 1.5 / 3)


def test_cells_are_found_once_each() -> None:
    """Both predicted cells overlap the first true one enough, only one finds it; the second true one is not found."""
    scores = score(predict_cells(2, LEFT, (0, 0, 10, 9)), row(('a', LEFT), ('b', RIGHT)))
    assert (scores['cell_precision'], scores['cell_recall']) == (0.5, 0.5)


def test_tables_without_boxes_are_evaluated_by_their_structure_alone() -> None:
    scores = score(predict_cells(2, LEFT, RIGHT), row(('a', None), ('b', None)))
    assert (scores['accuracy'], scores['teds_structure']) == (1, 1)
    assert all(math.isnan(scores[name]) for name in ('teds', 'cell_precision', 'cell_recall'))


def test_tables_beyond_the_limit_are_counted() -> None:
    assert score(predict_cells(2, LEFT, RIGHT), row(('a', LEFT), ('b', RIGHT)), max_length=3)['too_long'] == 1


def test_tables_with_spans_are_distinguished() -> None:
    metric = TableMetric(Vocabulary(), 500)
    spanned = Table(('<tr>', '<td', ' colspan="2"', '>', '</td>', '</tr>'), (Cell(),))
    metric.update([predict_cells(1, LEFT), predict_cells(1, LEFT)], Truth((row(('a', LEFT)), spanned)))
    assert [(line['tables'], line['number'], line['accuracy']) for line in metric.table()] == [
        ('simple', 1, 1),
        ('with spans', 1, 0),
    ]


def test_a_table_is_graded_by_its_teds() -> None:
    """The texts of both cells are swapped: TEDS 1/3, as above, with both cells found."""
    truth = row(('a', LEFT), ('b', RIGHT))
    wrong, right = TableMetric(Vocabulary(), 500).update(
        [predict_cells(2, RIGHT, LEFT), predict_cells(2, LEFT, RIGHT)], Truth((truth, truth))
    )
    assert wrong is not None and wrong.value == pytest.approx(1 / 3)
    assert wrong.reason == 'TEDS 0.33, 2 of 2 cells found'
    assert right is None
