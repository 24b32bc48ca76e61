"""Texts in JSON as docTR reads them, and as the packers of MMOCR 1.0.1 and Hugging Face write them."""

import json
from pathlib import Path
from typing import Any

import pytest

import drawn
from phalanx.curation.prepare.foreign import describe_unknown
from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.samples import LeftOut
from phalanx.curation.prepare.tree import Tree

QUAD = [[4, 6], [40, 6], [40, 18], [4, 18]]
MMOCR = {
    'instances': [
        {'polygon': [4, 6, 40, 6, 40, 18, 4, 18], 'bbox': [4.0, 6.0, 40.0, 18.0], 'bbox_label': 0, 'ignore': False},
        {'polygon': [4, 20, 40, 20, 40, 30, 4, 30], 'bbox': [4, 20, 40, 30], 'bbox_label': 0, 'ignore': True},
    ],
    'img_path': '0.png',
    'height': 48,
    'width': 64,
}


def found(root: Path, file: str, content: Any) -> Any:
    drawn.draw(root / '0.png', 0)
    drawn.write(root / file, content if isinstance(content, str) else json.dumps(content))
    refused: dict[str, LeftOut] = {}
    return find_annotations(Tree(root), refused=refused).get('text_json') or refused['text_json']


@pytest.mark.parametrize(
    ('file', 'content', 'split', 'text'),
    [
        ('labels.json', {'0.png': 'a "b"'}, '', 'a "b"'),
        ('train/metadata.jsonl', '{"file_name": "0.png", "text": "a b"}\n', 'train', 'a b'),
        ('data.json', [{'image': 'images/0.png', 'text': 'a b'}], '', 'a b'),
        (
            'textrecog_val.json',
            {'metainfo': {}, 'data_list': [{'instances': [{'text': 'a'}], 'img_path': '0.png'}]},
            'val',
            'a',
        ),
    ],
)
def test_texts_of_lines_are_read(tmp_path: Path, file: str, content: Any, split: str, text: str) -> None:
    (sample,) = found(tmp_path, file, content).samples
    assert (sample.split, sample.text) == (split, text)


@pytest.mark.parametrize(
    ('content', 'families', 'marked'),
    [
        (
            {'0.png': {'img_dimensions': [48, 64], 'img_hash': 'a', 'polygons': [QUAD]}},
            'text_detection',
            [('words', '', False)],
        ),
        ({'0.png': {'polygons': {'date': [QUAD]}}}, 'detection', [('date', None, False)]),
        ({'0.png': {'polygons': [QUAD], 'classes': ['Title']}}, 'detection', [('Title', None, False)]),
        ({'0.png': {'typed_words': [{'value': 'a', 'geometry': [4, 6, 40, 18]}]}}, 'recognition', [('text', 'a', False)]),
        ({'metainfo': {}, 'data_list': [MMOCR]}, 'text_detection', [('text', '', False), ('text', '', True)]),
    ],
)
def test_boxes_are_read(tmp_path: Path, content: Any, families: str, marked: list[tuple[str, str | None, bool]]) -> None:
    read = found(tmp_path, 'labels.json', content)
    assert read.families()[0] == families
    assert [(one.label, one.text, one.ignored) for one in read.samples[0].instances] == marked
    assert read.samples[0].instances[0].box == (4, 6, 40, 18)


@pytest.mark.parametrize(
    ('file', 'content', 'reason'),
    [
        ('labels.json', {'0.png': {'cells': [QUAD], 'logic': [[0, 0, 0, 0]]}}, 'write a file of HTML for each table'),
        ('train.json', {'metainfo': {'classes': ['a']}, 'data_list': []}, 'is a list of MMEngine'),
        ('a.jsonl', json.dumps({'file_name': '0.png', 'ground_truth': '{"gt_parse": {}}'}), 'without its places'),
        ('labels.json', {'0.png': {'polygons': {'date': 5}}}, 'date: expected list, got 5'),
        ('labels.json', {'0.png': 'x', '1.png': {'polygons': []}}, 'the text of some images, and objects of others'),
    ],
)
def test_other_files_are_refused_with_a_cure(tmp_path: Path, file: str, content: Any, reason: str) -> None:
    assert reason in found(tmp_path, file, content)[0]


def test_a_table_of_tesseract_is_named_with_a_cure(tmp_path: Path) -> None:
    drawn.draw(tmp_path / '0.png', 0)
    drawn.write(tmp_path / '0.tsv', 'level\tpage_num\tblock_num\tpar_num\n1\t1\t0\t0\n')
    assert 'write hOCR or ALTO' in describe_unknown(Tree(tmp_path))[0]


def test_a_class_of_an_image_is_no_text(tmp_path: Path) -> None:
    drawn.draw(tmp_path / '0.png', 0)
    drawn.write(tmp_path / 'metadata.jsonl', '{"file_name": "0.png", "label": "cat"}\n')
    assert 'text_json' not in find_annotations(Tree(tmp_path), refused={})


def test_a_damaged_file_is_left_to_the_reader_that_reports_it(tmp_path: Path) -> None:
    drawn.draw(tmp_path / '0.png', 0)
    drawn.write(tmp_path / 'train.json', '{\n "images": [\n  {"file_name": "0.png"},\n ],\n')
    refused: dict[str, LeftOut] = {}
    find_annotations(Tree(tmp_path), refused=refused)
    assert len(refused['pubtabnet']) == 4  # lines
    assert not refused.get('text_json')
