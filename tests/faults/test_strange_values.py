"""Values that Python can take and a reader cannot: each is refused by the reader's own error, with the name of the file."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import phalanx.cli.main as cli
from phalanx.data.samples import Draw, SampleError
from phalanx.engine.folder import lock_folder
from phalanx.families.detection.data.coco import CocoJson
from phalanx.families.detection.data.voc import PascalVOC
from phalanx.families.segmentation.data.file_list import FileList
from phalanx.families.table.data.pubtabnet import PubTabNet
from phalanx.system.errors import CheckpointError
from phalanx.weights.checkpoint import load
from phalanx.weights.finding import find
from phalanx.weights.reading import read_weights


def coco(root: Path, kind: str, key: str, value: Any) -> CocoJson:
    rows: dict[str, dict[str, Any]] = {
        'images': {'id': 1, 'file_name': 'a.png', 'height': 9, 'width': 7},
        'annotations': {'id': 1, 'image_id': 1, 'category_id': 3, 'bbox': [1, 1, 3, 4]},
        'categories': {'id': 3, 'name': 'cat'},
    }
    rows[kind][key] = value
    (root / 'a.json').write_text(json.dumps({name: [row] for name, row in rows.items()}))
    return CocoJson(root=root, train='a.json', eval='a.json', train_images='', eval_images='')


DEEP: list[Any] = []
for _ in range(500):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ('kind', 'key', 'value', 'why'),
    [
        ('images', 'height', 1e20, 'image 1: expected height and width, got 1e+20 7'),
        ('images', 'width', 10**400, 'image 1: expected height and width, got 9 int'),
        ('images', 'height', float('inf'), 'image 1: expected height and width, got inf 7'),
        ('images', 'height', DEEP, 'image 1: expected height and width, got list 7'),
        ('annotations', 'bbox', [1, 1, 1e300, 4], 'annotation 1: bbox: expected x, y, width and height, got 1 1 1e+300 4'),
        ('annotations', 'bbox', [1, 1, 10**400, 4], 'annotation 1: bbox: expected x, y, width and height, got 1 1 int 4'),
        (
            'images',
            'file_name',
            'a' * 300 + '.png',
            'image 1: file_name: ' + repr('a' * 80) + ' is not the name of a file, or too',
        ),
        ('images', 'file_name', 'a/' * 3000, 'is not the name of a file, or too long for one'),
        ('images', 'file_name', '\ud800.png', 'is not the name of a file, or too long for one'),
        ('images', 'file_name', 'a\0.png', 'is not the name of a file, or too long for one'),
    ],
)
def test_coco(tmp_path: Path, kind: str, key: str, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f'{tmp_path}/a.json: ') + '.*' + re.escape(why)):
        coco(tmp_path, kind, key, value).split('train')


def test_an_infinite_coco_area_is_refused(tmp_path: Path) -> None:
    Image.new('RGB', (7, 9)).save(tmp_path / 'a.png')
    _, objects = coco(tmp_path, 'annotations', 'area', 10**400).split('train').read(Draw(0))
    assert objects.areas.tolist() == [12]


VOC = '<annotation><size><width>7</width><height>{}</height></size><object><name>cat</name>{}</object></annotation>'
BOX = '<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>5</ymax></bndbox>'


@pytest.mark.parametrize(
    ('text', 'why'),
    [
        (VOC.format('1e20', BOX), 'expected height and width, got 1e20 7'),
        (VOC.format('9', BOX.replace('4', '1e300')), 'expected xmin, ymin, xmax and ymax, got 1 1 1e300 5'),
        (VOC.format('9', BOX).removesuffix('>'), 'is not well-formed XML'),
    ],
)
def test_voc(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / 'a.xml').write_text(text)
    (tmp_path / 'list.txt').write_text('a.png a.xml\n')
    with pytest.raises(ValueError, match=re.escape(f'{tmp_path}/a.xml: ') + '.*' + re.escape(why)):
        PascalVOC(root=tmp_path, train='list.txt', classes=('cat',)).split('train')


@pytest.mark.parametrize('encoding', ['ANSI', 'GB2312', 'Shift_JIS', 'rot13'])
def test_voc_of_any_declared_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    """An ASCII file is the same in all of them; a name that Python does not know as text is taken for UTF-8."""
    (tmp_path / 'a.xml').write_text(f'<?xml version="1.0" encoding="{encoding}"?>' + VOC.format(9, BOX))
    (tmp_path / 'list.txt').write_text('a.png a.xml\n')
    assert len(PascalVOC(root=tmp_path, train='list.txt', classes=('cat',)).split('train')) == 1


@pytest.mark.parametrize('name', ['"a\\q.png"', '"\\ud800.png"', f'"{"a" * 5000}"', '"../a.png"'])
def test_names_in_lines_of_tables(tmp_path: Path, name: str) -> None:
    """One of 5,000 characters would have made room for as many in every line."""
    (tmp_path / 'train').mkdir()
    line = f'{{"filename": {name}, "split": "train", "html": {{"structure": {{"tokens": []}}, "cells": []}}}}'
    (tmp_path / 'tables.jsonl').write_text(line + '\n')
    with pytest.raises(ValueError, match=re.escape(f'{tmp_path}/tables.jsonl:1: ')):
        PubTabNet(root=tmp_path, train='tables.jsonl').split('train')


@pytest.mark.parametrize(
    'cells', ['[' * 100_000, '[' * 100_000 + ']' * 100_000, '[{"tokens": ["a"], "bbox": [1, 1, 1' + '0' * 400 + ', 4]}]']
)
def test_cells_of_tables(tmp_path: Path, cells: str) -> None:
    (tmp_path / 'train').mkdir()
    Image.new('RGB', (7, 9)).save(tmp_path / 'train' / 'a.png')
    line = (
        f'{{"filename": "a.png", "split": "train", "html": {{"structure": {{"tokens": ["<td>", "</td>"]}}, "cells": {cells}}}}}'
    )
    (tmp_path / 'tables.jsonl').write_text(line + '\n')
    split = PubTabNet(root=tmp_path, train='tables.jsonl').split('train')
    with pytest.raises(SampleError, match=r'tables\.jsonl:1'):
        split.read(Draw(0))


@pytest.mark.parametrize('step', ['Infinity', 'NaN', '1e999', '[' * 100_000])
def test_a_manifest(tmp_path: Path, step: str) -> None:
    (tmp_path / 'manifest.json').write_text(f'{{"format": 1, "step": {step}, "files": {{}}}}')
    with pytest.raises(CheckpointError, match=re.escape(f'{tmp_path}/manifest.json: cannot be read')):
        load(tmp_path)


@pytest.mark.parametrize('name', ['a' * 300, 'a/' * 3000, 'a\0b'])
def test_a_line_of_a_list(tmp_path: Path, name: str) -> None:
    (tmp_path / 'train.txt').write_text(f'{name} b.png\n')
    with pytest.raises(ValueError, match=re.escape(f'{tmp_path}/train.txt:1: ')):
        FileList(root=tmp_path, classes=('cat',)).split('train')


@pytest.mark.parametrize('words', [['train'], ['config'], ['report'], ['eval'], ['train', 'pp_liteseg_digits', '--save_dir']])
def test_a_name_that_no_file_can_have_is_a_wrong_request(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert cli.main([*words, 'x' * 5000]) == 2
    said = capsys.readouterr().err
    # Since Python 3.14, a path whose name is too long just does not exist.
    assert said.endswith(('x...: File name too long; no file name is that long\n', '(`phalanx config` lists them)\n'))


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Python does not say the name of a file in which there is no room."""
    (tmp_path / 'lock').symlink_to('/dev/full')
    with pytest.raises(OSError, match=re.escape(f": '{tmp_path}/lock'")):
        lock_folder(tmp_path)


def test_a_manifest_that_names_a_file_as_none_can_be_named(tmp_path: Path) -> None:
    facts = {'format': 1, 'step': 1, 'files': {'x' * 300: {'bytes': 1, 'sha256': ''}}}
    (tmp_path / 'manifest.json').write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match=re.escape(f'{tmp_path}/manifest.json: cannot be read')):
        load(tmp_path)


def test_a_file_of_torch_1_5_that_is_cut_off_anywhere(tmp_path: Path) -> None:
    """Within a length that its pickle tells, too."""
    file = io.BytesIO()
    torch.save({'w': torch.ones(3)}, file, _use_new_zipfile_serialization=False)
    for length in range(16, len(file.getvalue())):
        (tmp_path / 'w.pth').write_bytes(file.getvalue()[:length])
        with pytest.raises(CheckpointError, match=r'w\.pth: (is not a complete file of torch\.save|holds more than weights)'):
            read_weights(find(tmp_path / 'w.pth'))
