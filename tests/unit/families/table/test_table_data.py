"""Data sets of tables: lines of JSON, and tables drawn on demand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from phalanx.data.samples import Draw, SampleError
from phalanx.families.table.annotation import Cell, Table
from phalanx.families.table.data import DATA, Source
from phalanx.families.table.data.rendered import plan_layout
from phalanx.families.table.draw import lay_out_cells
from phalanx.families.table.tokens import Vocabulary
from phalanx.families.table.tree import build_tree

ROW = ['<tr>', '<td>', '</td>', '<td', ' colspan="2"', '>', '</td>', '</tr>']


def line(name: str, split: str, cells: list[dict[str, Any]] | None = None, tokens: list[str] | None = None) -> dict[str, Any]:
    cells = cells or [{'tokens': ['<b>', 'a', '</b>'], 'bbox': [1, 2, 11, 12]}, {'tokens': []}]
    return {'filename': name, 'split': split, 'imgid': 0, 'html': {'cells': cells, 'structure': {'tokens': tokens or ROW}}}


def write(folder: Path, lines: list[Any], images: tuple[str, ...] = ('a.png', 'b.png', 'c.png')) -> Path:
    for name in images:
        for place in ('train', 'val'):
            (folder / place).mkdir(exist_ok=True)
            cv2.imwrite(str(folder / place / name), np.full((20, 30, 3), (0, 0, 255), np.uint8))
    texts = [text if isinstance(text, str) else json.dumps(text) for text in lines]
    (folder / 'PubTabNet_2.0.0.jsonl').write_text('\n'.join(texts) + '\n')
    return folder


def test_lines_of_a_split_are_read(tmp_path: Path) -> None:
    root = write(tmp_path, [line('a.png', 'train'), line('b.png', 'val'), '', line('c.png', 'train')])
    source = DATA['pubtabnet'](root=root).split('train')
    assert [source.name(number) for number in range(len(source))] == [str(root / 'train' / name) for name in ('a.png', 'c.png')]
    image, table = source.read(Draw(1))
    assert image.shape == (20, 30, 3)
    assert image[0, 0].tolist() == [255, 0, 0]  # red first
    assert table == Table(tuple(ROW), (Cell(('<b>', 'a', '</b>'), (1, 2, 11, 12)), Cell()))
    assert source.lengths(Vocabulary()).tolist() == [7, 7]
    assert source.lengths(Vocabulary(merge_cells=False)).tolist() == [8, 8]


def test_lines_without_a_split_belong_to_both_and_null_uses_all(tmp_path: Path) -> None:
    """PaddleOCR never reads `split`, so own data often has none, or `train` in the file of the evaluation."""
    unsaid = {key: value for key, value in line('a.png', '').items() if key != 'split'}
    root = write(tmp_path, [unsaid, line('b.png', 'train')])
    assert [len(DATA['pubtabnet'](root=root).split(split)) for split in ('train', 'eval')] == [2, 1]
    assert len(DATA['pubtabnet'](root=root, eval_split=None).split('eval')) == 2


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    assert len(DATA['pubtabnet'](root=write(tmp_path, [line('a.png', 'train')])).split('train')) == 1
    assert len(DATA['pubtabnet'](root=write(tmp_path, [line('a.png', 'train')] * 2)).split('train')) == 2


@pytest.mark.parametrize(
    ('changed', 'message'),
    [
        pytest.param(line('a.png', 'train', tokens=['<tr>', '</tr>']), 'has 0 cells, but 2 are described', id='too few cells'),
        pytest.param(line('a.png', 'train', [{'tokens': ['a'], 'bbox': [1, 2, 3]}] * 2), 'has 3 numbers', id='half a box'),
        pytest.param(line('a.png', 'train', [{'bbox': [1, 2, 3, 4]}] * 2), "there is no 'tokens'", id='no text'),
    ],
)
def test_an_unusable_table_is_reported(tmp_path: Path, changed: Any, message: str) -> None:
    source = DATA['pubtabnet'](root=write(tmp_path, [changed])).split('train')
    with pytest.raises(SampleError, match=rf'a\.png \(.*\.jsonl:1\): its annotation cannot be used: .*{re.escape(message)}'):
        source.read(Draw(0))


def test_an_image_that_cannot_be_decoded_is_reported(tmp_path: Path) -> None:
    source = DATA['pubtabnet'](root=write(tmp_path, [line('a.png', 'train')])).split('train')
    (tmp_path / 'train' / 'a.png').write_bytes(b'no image')
    with pytest.raises(SampleError, match=r'a\.png: is not an image'):
        source.read(Draw(0))


@pytest.mark.parametrize(
    ('lines', 'error', 'message'),
    [
        pytest.param(
            [line('z.png', 'train')],
            FileNotFoundError,
            r'1 file is missing in .*train: z.png \(.*jsonl:1\)',
            id='image missing',
        ),
        pytest.param([line('../a.png', 'train')], ValueError, 'lies outside the data set', id='image outside'),
        pytest.param([line('a.png', 'val')], ValueError, "no line has the split 'train'; there are val", id='no such split'),
        pytest.param(
            [line('a.png', 'train'), '{}'],
            ValueError,
            'jsonl:2: has no filename, which every line of PubTabNet has',
            id='other lines',
        ),
        pytest.param([line('a.png', 'train'), '{"imgid": 3, "ht'], ValueError, 'jsonl:2: is not JSON', id='cut off early'),
        pytest.param([json.dumps([line('a.png', 'train')])], ValueError, 'jsonl:1: is an array; each line must', id='an array'),
        pytest.param([json.dumps(line('a.png', 'train'))[:-9]], ValueError, 'jsonl:1: its structure is not JSON', id='cut off'),
    ],
)
def test_a_malformed_file_is_reported_before_training(
    tmp_path: Path, lines: list[Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        DATA['pubtabnet'](root=write(tmp_path, lines)).split('train').check_files()


def test_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r'data\.root must name'):
        DATA['pubtabnet'](root=tmp_path / 'none').split('train')
    with pytest.raises(FileNotFoundError, match=r'icdar2013\.jsonl: there is no such file'):
        DATA['icdar2013_tables'](root=tmp_path).split('train')


def rendered(**options: Any) -> Source:
    return DATA['rendered_tables'](train_tables=30, eval_tables=30, **options).split('train')


def test_a_rendered_table_is_a_function_of_its_number() -> None:
    (image, table), (again, same), (_, other) = rendered().read(Draw(3)), rendered().read(Draw(3)), rendered().read(Draw(4))
    assert np.array_equal(image, again)
    assert table == same != other
    assert table != rendered(seed=1).read(Draw(3))[1] != DATA['rendered_tables']().split('eval').read(Draw(3))[1]


def test_the_cells_of_a_rendered_table_fill_its_grid() -> None:
    """Each square of the grid belongs to exactly one cell, spans included."""
    for seed in range(200):
        layout = plan_layout((2, 6), (2, 5), np.random.default_rng(seed))
        squares = lay_out_cells(build_tree(layout.structure()))
        covered = [
            (square.row + y, square.column + x)
            for square in squares
            for y in range(square.rowspan)
            for x in range(square.colspan)
        ]
        assert sorted(covered) == [(row, column) for row in range(layout.rows) for column in range(layout.columns)]
        assert [(square.row, square.column) for square in squares] == [(place.row, place.column) for place in layout.places]


def test_boxes_of_a_rendered_table_are_tight_around_its_ink() -> None:
    """Without rules: the darkest pixels lie in the boxes, none around them."""
    source, bare = rendered(), 0
    for number in range(30):
        image, table = source.read(Draw(number))
        paper = np.median(image, axis=(0, 1))
        ink = np.abs(image - paper).max(-1) > 90
        inside = np.zeros_like(ink)
        for x0, y0, x1, y1 in np.array(table.boxes, int):
            assert ink[y0:y1, x0:x1].any()
            inside[y0:y1, x0:x1] = True
        bare += not (ink & ~inside).any()
    assert bare >= 5  # tables without dark rules


def test_reported_lengths_of_rendered_tables_are_true() -> None:
    source = rendered()
    read = [Vocabulary().length(source.read(Draw(number))[1].structure) for number in range(30)]
    assert source.lengths(Vocabulary()).tolist() == read


def test_invalid_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r'data.rows must be a minimum and a maximum between 1 and 10, got 4, 2'):
        rendered(rows=(4, 2))
