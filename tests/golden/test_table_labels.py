"""Tables as PaddleOCR prepares, encodes, decodes and judges them.

Expected numbers were produced by the original; trim_table.py copied them to data/.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from phalanx.families.table.annotation import Cell, Table
from phalanx.families.table.data.rendered import RenderedTables
from phalanx.families.table.loss import Structure
from phalanx.families.table.metric import TableMetric, teds
from phalanx.families.table.models.slanet import slanet
from phalanx.families.table.task import TableStructure, begin_decoding
from phalanx.families.table.tokens import CELLS, Vocabulary
from phalanx.families.table.tree import Element
from phalanx.runtime.prepare import fit_square
from phalanx.runtime.results import Prediction
from phalanx.runtime.table import START, steps

DATA = Path(__file__).parent / 'data'
FACTS = json.loads((DATA / 'table.json').read_text())
ARRAYS = dict(np.load(DATA / 'slanet.npz'))
LABELS = FACTS['c_table_labels']


@dataclass
class Truth:
    truths: tuple[Table, ...]


def annotated(example: dict[str, Any]) -> Table:
    cells = (Cell(tuple(cell['tokens']), tuple(cell['bbox']) if 'bbox' in cell else None) for cell in example['cells'])
    return Table(tuple(example['tokens']), tuple(cells))


def test_token_ids_are_those_of_the_original() -> None:
    merged = Vocabulary()
    assert list(merged.tokens) == LABELS['character_merge_no_span']
    assert list(Vocabulary(merge_cells=False).tokens) == LABELS['character_no_merge']
    assert (START, merged.end) == (LABELS['start_idx'], LABELS['end_idx'])


@pytest.mark.parametrize('example', LABELS['examples'], ids=['plain', 'spans', 'oddities'])
def test_a_table_is_encoded_as_by_the_original(example: dict[str, Any]) -> None:
    """`oddities`: an empty token, a span without its space, and a token missing in the dictionary."""
    target = Vocabulary().encode(annotated(example), (100, 200))
    assert target.ids.tolist() == example['structure_first_n']
    assert len(target.ids) == example['length'] + 2
    assert target.has_box.tolist() == [mask == 1 for mask in example['bbox_mask_first_n']]
    np.testing.assert_allclose(target.boxes, example['bboxes_normalised_by_200x100_first_n'], rtol=1e-6)
    assert Vocabulary(merge_cells=False).encode(annotated(example), (1, 1)).ids.tolist() == example['no_merge_structure_first']


def test_a_sequence_is_decoded_as_by_the_original() -> None:
    expected = FACTS['c_table_decode']
    for ids, (tokens, _) in zip(expected['argmax'], expected['structure'], strict=True):
        assert [Vocabulary().tokens[ids[place]] for place in steps(ids, Vocabulary().end)] == tokens


def test_structures_are_compared_as_by_the_original() -> None:
    facts = FACTS['c_table_structure_metric']
    for (predicted, true), expected in zip(facts['pairs_pred_target'], facts['default_per_pair'], strict=True):
        metric = TableMetric(Vocabulary(), 500)
        boxes = np.zeros((sum(token in CELLS for token in predicted), 4), np.float32)
        cells = (Cell(),) * sum(token in CELLS for token in true)
        metric.update([Prediction(tuple(predicted), boxes, 1.0)], Truth((Table(tuple(true), cells),)))
        assert metric.compute()['accuracy'] == expected


@pytest.mark.parametrize('case', FACTS['c_teds']['pairs'], ids=lambda case: case['name'])
def test_teds_is_that_of_the_original(case: dict[str, Any]) -> None:
    """The original gives 0 where a table is missing, or not within a body."""
    predicted, true = parsed(case['pred']), parsed(case['true'])
    if predicted is None or true is None or '<body>' not in case['pred']:
        assert case['teds'] == case['teds_struct'] == 0
        return
    assert teds(predicted, true) == pytest.approx(case['teds'])
    assert teds(predicted, true, structure_only=True) == pytest.approx(case['teds_struct'])


def parsed(html: str) -> Element | None:
    """Parse the table in some HTML, the content of its cells as characters and tags."""
    parser = Parser()
    parser.feed(html)
    return parser.table


class Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.table: Element | None = None
        self.opened: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        spans = {name: int(value or 1) for name, value in attrs}
        node = Element(tag, spans.get('colspan', 1), spans.get('rowspan', 1))
        if tag == 'table':
            self.table = node
        elif self.opened and self.opened[-1].tag == 'td':
            self.write(f'<{tag}>')
            return
        elif self.opened:
            self.opened[-1].children.append(node)
        if self.table:
            self.opened.append(node)

    def handle_endtag(self, tag: str) -> None:
        if self.opened and self.opened[-1].tag == 'td' != tag:
            self.write(f'</{tag}>')
        elif self.opened:
            self.opened.pop()

    def handle_data(self, data: str) -> None:
        if self.opened and self.opened[-1].tag == 'td':
            self.write(*data)

    def write(self, *pieces: str) -> None:
        self.opened[-1].content += pieces


@pytest.mark.parametrize('case', FACTS['images'], ids=lambda case: f'{case["w"]}x{case["h"]}')
def test_an_image_is_fitted_and_normalised_as_by_the_original(case: dict[str, Any]) -> None:
    """Images of the original are BGR, so channels are reversed before and after."""
    image = original_image(case)[..., ::-1]
    np.testing.assert_array_equal(fit_square(image, 488)[::5, ::5, ::-1], ARRAYS[case['resized']['array_key']])
    task = TableStructure(TableStructure.Keys(model=partial(slanet), data=partial(RenderedTables), loss=(partial(Structure),)))
    inputs = task.network_input(task.collate([task.request(image)]))
    expected = case['full_pipeline_image']
    assert inputs.flatten()[:8].tolist() == pytest.approx(expected['first8'], abs=1e-5)
    assert inputs.double().sum().item() == pytest.approx(expected['sum'], rel=1e-5)
    assert inputs.double().abs().sum().item() == pytest.approx(expected['abs_sum'], rel=1e-5)


def original_image(case: dict[str, Any]) -> npt.NDArray[np.uint8]:
    """Images of the golden numbers, computed by a rule."""
    if case['kind'] == 'random':
        return np.random.RandomState(case['seed']).randint(0, 256, (case['h'], case['w'], 3)).astype(np.uint8)
    y, x = np.mgrid[0 : case['h'], 0 : case['w']]
    waves = [(127 + 100 * np.sin(x / 9.0 + k) * np.cos(y / 7.0 - k)).astype(np.uint8) for k in range(3)]
    return np.stack(waves, axis=-1)


def test_network_outputs_are_decoded_as_by_the_original() -> None:
    facts = FACTS['c_table_decode']
    rng = np.random.RandomState(3)
    probabilities = rng.random_sample((2, 9, 30)).astype(np.float32)
    probabilities[0, 6, 29] = 5
    boxes = torch.from_numpy(rng.random_sample((2, 9, 4)).astype(np.float32))
    sizes = [(int(shape[0]), int(shape[1])) for shape in facts['shape']]
    found = begin_decoding(torch.from_numpy(probabilities), boxes, sizes, Vocabulary())()
    for prediction, (tokens, score), expected in zip(found, facts['structure'], facts['bboxes'], strict=True):
        assert prediction.structure == tuple(tokens)
        assert prediction.score == pytest.approx(score)
        np.testing.assert_allclose(prediction.boxes, np.array(expected).reshape(-1, 4), rtol=1e-6)
