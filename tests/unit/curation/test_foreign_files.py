"""Files of tools without a reader: they are named, with what to export instead."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import drawn
from running import run_here

DARWIN = {'name': 'a.png', 'path': '/', 'slots': []}
MMDETECTION = {'filename': 'a.png', 'width': 64, 'height': 48, 'ann': {'bboxes': [[1, 2, 3, 4]], 'labels': [0]}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def failure(name: str, content: object, capsys: pytest.CaptureFixture[str]) -> str:
    """Message of `new` about two images and a file."""
    for number in range(2):
        drawn.draw(Path(f'mine/{"ab"[number]}.png'), number)
    drawn.write(Path('mine', name), content)
    assert run_here('new', 'mine', '--no_trial') == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ('name', 'content', 'tool'),
    [
        ('export.ndjson', {'data_row': {'id': 'x'}, 'projects': {}, 'media_attributes': {}}, 'an export of Labelbox'),
        ('export.json', [{'ID': 'x', 'Labeled Data': 'https://x/a.png', 'Label': {'objects': []}}], 'an export of Labelbox'),
        ('train.json', [MMDETECTION], 'a list of MMDetection'),
        (
            'labels.json',
            {'classes': None, 'labels': {'a': [{'label': 'car', 'bounding_box': [0.1, 0.1, 0.3, 0.5]}]}},
            'FiftyOne',
        ),
        ('a.json', {'file_name': 'a.png', 'predictions': [{'category_id': 1, 'bbox': [1, 2, 3, 4]}]}, 'Lightly'),
        ('a.ndjson', {'type': 'dataset', 'task': 'detect', 'name': 'x', 'class_names': {'0': 'car'}}, 'NDJSON of Ultralytics'),
        (
            'a.jsonl',
            {'image': {'bytes': None, 'path': 'a.png'}, 'image_id': 1, 'objects': {'bbox': []}},
            'a Hugging Face data set',
        ),
        ('odvg.jsonl', {'filename': 'a.png', 'height': 48, 'width': 64, 'detection': {'instances': []}}, 'ODVG'),
        ('metadata.json', {'name': 'x', 'media_type': 'image', 'sample_fields': {}}, 'a data set of FiftyOne'),
        ('manifest.json', {'type': 'eta.core.datasets', 'description': '', 'index': []}, 'a data set of FiftyOne'),
        ('a.geojson.json', {'type': 'FeatureCollection', 'features': []}, 'GeoJSON'),
        ('a.png.json', {'metadata': {'name': 'a.png'}, 'instances': [{'type': 'bbox'}]}, 'SuperAnnotate'),
        ('a.json', {'version': '2.0', 'item': DARWIN, 'annotations': []}, 'V7 Darwin'),
        ('a.json', {'dataset': 'x', 'image': {'filename': 'a.png'}, 'annotations': []}, 'V7 Darwin'),
        ('x.json', {'project_name': 'x', 'label_classes': [], 'images': [{'image_name': 'a.png'}]}, 'Hasty'),
        ('x.json', [{'label_hash': 'x', 'data_title': 'a.png', 'data_units': {}}], 'Encord'),
        ('x.json', {'asset': {'name': 'a.png'}, 'regions': [], 'version': '2'}, 'VoTT'),
        ('det.json', [{'name': 'a.png', 'timestamp': 1, 'labels': [{'category': 'car', 'box2d': {}}]}], 'BDD100K'),
        ('a.odgt', {'ID': 'a', 'gtboxes': []}, 'CrowdHuman'),
        ('a.json', {'form': [{'box': [1, 2, 3, 4], 'text': 'x', 'words': []}]}, 'FUNSD'),
        ('a_gtFine_polygons.json', {'imgHeight': 48, 'imgWidth': 64, 'objects': []}, 'polygons of Cityscapes'),
        ('output.manifest', {'source-ref': 's3://x/a.png', 'boxes': {}}, 'SageMaker'),
        ('x.jsonl', {'imageGcsUri': 'gs://x/a.png', 'boundingBoxAnnotations': []}, 'Vertex AI'),
        ('x.jsonl', {'image_url': 'azureml://a.png', 'label': []}, 'Azure'),
        ('boxes.json', [{'image_id': 1, 'category_id': 1, 'bbox': [1, 2, 3, 4], 'score': 0.5}], 'a list of detections'),
    ],
)
def test_an_export_without_a_reader_is_named_with_what_to_export_instead(
    name: str, content: Any, tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = failure(name, json.dumps(content), capsys)
    line = next(line for line in said.splitlines() if name in line)
    assert tool in line and 'which is not read; ' in line


def test_json_of_nobody_known_is_described_by_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert 'x.json: JSON of no known format, with photo, things' in failure('x.json', {'photo': 'a', 'things': []}, capsys)


def test_one_file_of_each_unknown_kind_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.write(Path('mine/a.xml'), '<?xml version="1.0"?>\n<Scans><Page/></Scans>')
    said = failure('boxes.csv', '# of a tool\n1,2,3\n', capsys)
    assert 'a.xml: XML of no known format, <Scans>' in said
    assert "boxes.csv: no known format, such as '# of a tool'" in said


@pytest.mark.parametrize(
    ('name', 'content'),
    [
        ('0001.xml', f'<Annotations><image file="0001.jpg"><box><segs>{"1," * 27}2</segs></box></image></Annotations>'),
        ('0001001.txt', '1,' * 28 + '####word\n'),
    ],
)
def test_outlines_of_ctw1500_are_refused_with_the_form_that_is_read(
    name: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = failure(name, content, capsys)
    assert f'{name}: is outlines and texts of CTW1500, which are not read; write them as PaddleOCR does, image<TAB>[' in said


def test_a_file_that_is_no_text_is_reported_once_though_two_read_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path('mine').mkdir()
    Path('mine/train.txt').write_bytes('a.png\t\u00e9\n'.encode('latin-1'))
    assert failure('notes.md', '', capsys).count('train.txt: is not UTF-8 text (byte 6); save it as such') == 1


def test_binary_files_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert 'train.parquet: is a table of Parquet' in failure('train.parquet', 'PAR1', capsys)


@pytest.mark.parametrize(
    ('name', 'reason'),
    [('a/data.mdb', 'which the data set `lmdb_sets` of recognition reads'), ('a.tar', 'is read by the data set `shards`')],
)
def test_images_in_a_file_of_many_are_explained_where_there_are_no_others(
    name: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn.write(Path('mine', name), 'x')
    assert run_here('new', 'mine', '--no_trial') == 2
    said = capsys.readouterr().err
    assert 'mine: has no image' in said and reason in said


def test_files_of_another_tool_beside_annotations_are_reported_as_unread(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.yolo(Path('mine'))
    drawn.write(Path('mine/more.ndjson'), json.dumps({'data_row': {}, 'projects': {}}))
    assert run_here('new', 'mine', '--no_trial') == 0
    assert 'more.ndjson: is an export of Labelbox, which is not read' in capsys.readouterr().out


@pytest.mark.parametrize('name', ['coco.json', 'labels.csv', 'a.xml', 'a.txt', 'lines.jsonl'])
def test_a_pointer_of_git_lfs_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pointer = 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n'
    said = failure(name, pointer, capsys)
    assert re.search(rf'mine/{re.escape(name)}(:1)?: is a Git LFS pointer: `git lfs pull` in its repository fetches the', said)
