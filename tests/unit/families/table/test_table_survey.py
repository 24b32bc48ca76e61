"""Counts of `phalanx data check` for tables, by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phalanx.curation.census import take_census
from phalanx.data.samples import Draw, Image
from phalanx.engine.job import open_job
from phalanx.families.curated import Surveyed
from phalanx.families.table.annotation import Cell, Table
from phalanx.families.table.survey import CellSurvey
from phalanx.families.table.tokens import Vocabulary

TEXT = Cell(('a',), (2, 2, 8, 8))
STRUCTURE = ('<tbody>', '<tr>', '<td', ' colspan="2"', '>', '</td>', '</tr>', '<tr>', '<td>', '</td>', '<td>', '</td>', '</tr>')


class OneTable:
    """Two columns, the first row one cell, the last cell empty; 14 tokens, 12 after merging two cells."""

    def __len__(self) -> int:
        return 1

    def check_files(self) -> None:
        """Nothing is missing."""

    def name(self, index: int) -> str:
        return 'the table'

    def read(self, draw: Draw) -> tuple[Image, Table]:
        return np.zeros((20, 40, 3), np.uint8), Table((*STRUCTURE, '</tbody>'), (TEXT, TEXT, Cell()))

    def lengths(self, vocabulary: Vocabulary) -> np.ndarray:
        return np.array([12])


def test_cells_are_counted_by_kind_and_long_tables_reported() -> None:
    cells = {'with text': 1, 'empty': 1, 'over several rows or columns': 1}
    assert CellSurvey(OneTable(), Vocabulary(), 12).count(0)[1] == cells
    assert CellSurvey(OneTable(), Vocabulary(), 11).count(0)[1] == {**cells, '(too long)': 1}


@dataclass
class AnyTable(OneTable):
    """A table on an image of 40 x 20 pixels."""

    table: Table

    def read(self, draw: Draw) -> tuple[Image, Table]:
        return np.zeros((20, 40, 3), np.uint8), self.table


def test_tokens_and_boxes_that_cannot_be_learned_are_counted() -> None:
    """A span of 11, a table of one cell within a cell, corners the wrong way round, and a box far outside."""
    inner = ('<td>', '<table>', '<tr>', '<td>', '</td>', '</tr>', '</table>', '</td>')
    table = Table(
        ('<tr>', '<td', ' colspan="11"', '>', '</td>', *inner, '</tr>'),
        (Cell(('a',), (20, 20, 1, 1)), Cell(('b',), (-5, 0, 9999, 50)), Cell(('c',), (2, 2, 8, 8))),
    )
    survey = CellSurvey(AnyTable(table), Vocabulary(merge_cells=False), 50)
    assert survey.count(0)[1] == {
        'with text': 2,
        'over several rows or columns': 1,
        '(not in the vocabulary) colspan="11"': 1,
        '(not in the vocabulary) <table>': 1,
        '(not in the vocabulary) </table>': 1,
        '(within another cell)': 1,
        '(box with exchanged corners or without area)': 1,
        '(box beyond the image)': 1,
    }
    assert set(survey.cures) >= {name for name in survey.count(0)[1] if name.startswith('(box')}


def test_spans_of_the_data_extend_the_vocabulary() -> None:
    table = Table(('<td', 'colspan="11"', '>', '</td>'), (TEXT,))
    vocabulary = Vocabulary(more=('colspan="11"',))
    assert [vocabulary.tokens[number] for number in vocabulary.encode(table, (20, 40)).ids] == [
        *('sos', '<td', ' colspan="11"', '>', '</td>', 'eos')
    ]
    assert len(vocabulary) == len(Vocabulary()) + 1
    survey = CellSurvey(AnyTable(table), vocabulary, 50)
    assert survey.count(0)[1] == {'over several rows or columns': 1}


def test_the_picture_has_the_structure_below_the_image() -> None:
    picture = CellSurvey(OneTable(), Vocabulary(), 12).picture(0)
    assert picture.shape[1:] == (40, 3) and picture.shape[0] > 20


def test_the_tables_of_a_recipe_can_be_checked() -> None:
    task = open_job('slanet_rendered', [('data.train_tables=2', ''), ('data.eval_tables=1', '')]).task
    assert isinstance(task, Surveyed)
    census = take_census(task, limit=None, workers=0, advance=lambda *_: None)
    assert (census.unit, census.problems, census.read()) == ('cells', [], 3)
