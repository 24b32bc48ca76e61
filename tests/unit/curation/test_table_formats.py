"""Tables in the layouts of SciTSR, SynthTabNet and FinTabNet (their README and readers), WTW and PubTables-1M."""

import json
from pathlib import Path
from typing import Any

import pytest

import drawn
from phalanx.curation.prepare.foreign import describe_unknown, name_foreign
from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.samples import LeftOut
from phalanx.curation.prepare.tree import Tree
from running import run_here

HTML = {
    'cells': [
        {'tokens': ['a'], 'bbox': [1, 2, 9, 8, 2], 'cell_id': 0, 'is_header': True},
        {'tokens': [], 'bbox': [11, 2, 19, 8, 1]},
    ],
    'structure': {'tokens': ['<thead>', '<tr>', '<td>', '</td>', '<td>', '</td>', '</tr>', '</thead>']},
}


def cell(text: str, row: int, last_row: int, column: int, last_column: int) -> dict[str, Any]:
    places = {'start_row': row, 'end_row': last_row, 'start_col': column, 'end_col': last_column}
    return {'id': 0, 'tex': text, 'content': text.split(), **places}


def find(root: Path, name: str, content: Any) -> tuple[Any, dict[str, LeftOut]]:
    drawn.draw(root / 'img/0705.0450v1.2.png', 0)
    drawn.write(root / name, content)
    refused: dict[str, LeftOut] = {}
    return find_annotations(Tree(root), refused=refused), refused


def test_cells_of_scitsr_are_put_into_their_rows(tmp_path: Path) -> None:
    cells = [cell('9', 1, 1, 1, 1), cell('a < b', 0, 0, 0, 1), cell('c', 1, 2, 0, 0)]
    held, _ = find(tmp_path, 'structure/0705.0450v1.2.json', {'cells': cells})
    table = json.loads(held['scitsr'].samples[0].table)
    rows = ('<td colspan="2"></td>', '<td rowspan="2"></td><td></td>', '<td></td>')
    assert ''.join(table['structure']['tokens']) == ''.join(['<tbody>', *(f'<tr>{row}</tr>' for row in rows), '</tbody>'])
    assert [''.join(one['tokens']) for one in table['cells']] == ['a < b', 'c', '9', '']


@pytest.mark.parametrize(
    ('cells', 'reason'),
    [
        ([cell('a', 0, 0, 0, 1), cell('b', 0, 0, 1, 1)], 'overlaps with another one in row 0, column 1'),
        ([cell('a', 1, 0, 0, 1)], 'cannot be in rows 1 to 0'),
        ([cell('a', 0, 10**9, 0, 1)], 'cannot be in rows'),
        ([cell('a', 0, 0, 0, 0) | {'end_row': '0'}], 'end_row'),
    ],
)
def test_impossible_cells_are_refused(tmp_path: Path, cells: list[dict[str, Any]], reason: str) -> None:
    _, refused = find(tmp_path, '0705.0450v1.2.json', {'cells': cells})
    assert reason in refused['scitsr'][0]


def test_lines_like_those_of_pubtabnet(tmp_path: Path) -> None:
    """SynthTabNet has a class behind each box; FinTabNet is about pages of PDF."""
    line = {'filename': '0705.0450v1.2.png', 'split': 'train', 'html': HTML}
    held, _ = find(tmp_path, 'synthetic_data.jsonl', json.dumps(line))
    assert held['pubtabnet'].samples[0].split == 'train'
    _, refused = find(tmp_path, 'synthetic_data.jsonl', json.dumps(line | {'filename': 'AAL/2015/page_51.pdf', 'table_id': 7}))
    assert 'cut its tables out as images' in refused['pubtabnet'][0]


def test_lines_of_other_formats_are_not_parsed(tmp_path: Path) -> None:
    _, refused = find(tmp_path, 'a.jsonl', '{"file_name": "0705.0450v1.2.png", "text": "a"}\n{"file_name": 1')
    assert 'pubtabnet' not in refused


def test_places_of_cells_in_wtw_are_counted_as_unused(tmp_path: Path) -> None:
    box = ''.join(
        f'<{tag}>{number}</{tag}>' for tag, number in (('xmin', 4), ('ymin', 6), ('xmax', 24), ('ymax', 30), ('startcol', 1))
    )
    held, _ = find(
        tmp_path, '0705.0450v1.2.xml', f'<annotation><object><name>box</name><bndbox>{box}</bndbox></object></annotation>'
    )
    assert "not used: 1 attributes 'startcol'" in held['voc'].notes


@pytest.mark.parametrize(
    ('content', 'reason'),
    [
        ({'file_name': '0.png', 'otsl': ['fcel', 'nl'], 'html': [], 'cells': [[]]}, 'a table in OTSL'),
        ({'schema_name': 'DoclingDocument', 'version': '1.0.0', 'texts': [], 'tables': []}, 'export_to_html'),
        ([{'image': '0.png', 'label': 'cat'}], 'of classification, which is not a family'),
        (
            '<?xml version="1.0"?>\n<document xmlns="http://www.abbyy.com/FineReader_xml/FineReader10-schema-v1.xml">',
            'export ALTO',
        ),
        ('<document filename="0.png">\n<table id="t">\n<cell id="c" start-row="0" start-col="0">', 'tables of pages as ICDAR'),
    ],
)
def test_others_are_named_with_a_cure(tmp_path: Path, content: Any, reason: str) -> None:
    drawn.write(tmp_path / ('a.xml' if isinstance(content, str) else 'a.json'), content)
    tree = Tree(tmp_path)
    assert reason in ' '.join([*name_foreign(tree), *describe_unknown(tree)])


def test_rows_and_columns_are_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PubTables-1M is for detection, as Table Transformer uses it; its words are not called unknown beside it."""
    drawn.voc(tmp_path / 'mine')
    drawn.write(
        tmp_path / 'mine/part 0_words.json', [{'bbox': [31.4, 9.9, 95.3, 12.8], 'text': 'a', 'span_num': 515, 'line_num': 0}]
    )
    assert run_here('new', str(tmp_path / 'mine'), '--family', 'table', '--no_trial') == 2
    printed = capsys.readouterr().err
    assert 'voc is for detection' in printed
    assert 'tables are read from HTML' in printed
    assert 'no known format' not in printed
