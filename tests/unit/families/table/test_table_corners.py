"""Tables whose cells are annotated and said by their four corners, as those of SLANet_ch."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.testing import assert_allclose

from phalanx.data.samples import Draw
from phalanx.families.table.annotation import Cell, Table
from phalanx.families.table.data.pubtabnet import PubTabNet, parse_table
from phalanx.families.table.metric import TableMetric
from phalanx.families.table.tokens import CHINESE, Vocabulary
from phalanx.runtime.results import Prediction
from phalanx.runtime.table import decode_structure

CORNERS = (2.0, 4.0, 10.0, 5.0, 9.0, 9.0, 1.0, 8.0)
HTML = {
    'structure': {'tokens': ['<tbody>', '<tr>', '<td>', '</td>', '</tr>', '</tbody>']},
    'cells': [{'tokens': ['a'], 'bbox': [[2, 4], [10, 5], [9, 9], [1, 8]]}],
}


def test_four_points_or_eight_numbers_are_corners_with_their_bounding_box() -> None:
    (cell,) = parse_table({'html': HTML}, 'a line').cells
    assert (cell.corners, cell.box) == (CORNERS, (1, 4, 10, 9))
    flat = {**HTML, 'cells': [{'tokens': ['a'], 'bbox': list(CORNERS)}]}
    assert parse_table({'html': flat}, 'a line').cells == (cell,)
    synthetic = {**HTML, 'cells': [{'tokens': ['a'], 'bbox': [1, 4, 10, 9, 2]}]}  # SynthTabNet: the last is a class
    assert parse_table({'html': synthetic}, 'a line').cells == (Cell(('a',), (1, 4, 10, 9)),)
    assert Cell(('a',), (1, 2, 3, 4)).quadrangle == (1, 2, 3, 2, 3, 4, 1, 4)
    with pytest.raises(ValueError, match='has 3 numbers'):
        parse_table({'html': {**HTML, 'cells': [{'tokens': ['a'], 'bbox': [1, 2, 3]}]}}, 'a line')


def test_a_network_trained_on_corners_predicts_their_bounding_boxes() -> None:
    words = Vocabulary(chinese=True, corners=True)
    assert len(words) == 50 and set(words.tokens) == {'sos', *CHINESE, '<td></td>', 'eos'} - {'<td>'}
    target = words.encode(parse_table({'html': HTML}, 'a line'), (20, 40))
    place = target.has_box.tolist().index(True)
    assert_allclose(target.boxes[place], np.array(CORNERS) / np.tile([40, 20], 4), rtol=1e-6)
    found = decode_structure(
        target.ids[1:], np.ones(len(target.ids) - 1, np.float32), target.boxes[1:], (20, 40), words.tokens, ['<td></td>']
    )
    assert_allclose(found.boxes, [[1, 4, 10, 9]], rtol=1e-6)
    empty = decode_structure(
        np.array([words.end] * 2), np.ones(2, np.float32), np.zeros((2, 8), np.float32), (20, 40), words.tokens, []
    )
    assert empty.boxes.shape == (0, 4)


def test_accuracy_can_ignore_sections() -> None:
    table = parse_table({'html': HTML}, 'a line')
    tokens = tuple(token for token, _ in Vocabulary().spell(table) if 'tbody' not in token)
    found = Prediction(tokens, np.array([[1, 4, 10, 9]], np.float32), 1.0)
    for ignores, accuracy in ((False, 0.0), (True, 1.0)):
        metric = TableMetric(Vocabulary(), 500, ignore_sections=ignores)
        metric.update([found], Batch((table,)))
        assert metric.compute()['accuracy'] == accuracy


class Batch:
    def __init__(self, tables: tuple[Table, ...]) -> None:
        self.truths = tables


def test_a_line_of_paddleocrs_chinese_data_is_read(tmp_path: Path) -> None:
    (tmp_path / 'val').mkdir()
    cv2.imwrite(str(tmp_path / 'val/a.png'), np.zeros((20, 40, 3), np.uint8))
    (tmp_path / 'val.txt').write_text(json.dumps({'filename': 'a.png', 'html': HTML}) + '\n')
    source = PubTabNet(root=tmp_path, eval='val.txt').split('eval')
    assert source.read(Draw(0))[1].cells[0].corners == CORNERS
