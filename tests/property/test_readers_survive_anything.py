"""Whatever bytes a file holds, its reader gives a result or its own error: no other exception, no crash, no endless work.

`READER_INPUTS=5000 pytest tests/property/test_readers_survive_anything.py` tries that many inputs for each reader; the counts
of a long trial stand in docs/security.md. (`.pdparams` files have a trial of their own in
tests/unit/paddle/test_convert_pdparams.py.)
"""

import hashlib
import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from phalanx.config.read import ConfigError, read
from phalanx.data.image import read_image, read_labels
from phalanx.data.samples import Draw, SampleError
from phalanx.families.detection.data.coco import CocoJson
from phalanx.families.detection.data.voc import PascalVOC
from phalanx.families.detection.data.yolo import YoloText
from phalanx.families.recognition.data.label_files import LabelFiles
from phalanx.families.recognition.data.lmdb_sets import LmdbSets
from phalanx.families.segmentation.data.file_list import FileList
from phalanx.families.table.data.pubtabnet import PubTabNet
from phalanx.system.errors import CheckpointError
from phalanx.weights.checkpoint import Checkpoints, load
from phalanx.weights.finding import find
from phalanx.weights.reading import read_weights

INPUTS = int(os.environ.get('READER_INPUTS', 60))
SETTINGS = settings(
    max_examples=INPUTS,
    derandomize='READER_INPUTS' not in os.environ,  # a change meets the same inputs each time, a fuzz run meets others
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
LISTS = (ValueError, FileNotFoundError)  # what a list of samples may raise when it is read at the start
PIXELS = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)


def encoded(pixels: np.ndarray, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@st.composite
def mutated(draw: st.DrawFn, *examples: bytes) -> bytes:
    """An example with bytes changed, taken out, doubled or put in; now and then anything at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    data = bytearray(draw(st.sampled_from(examples)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 12)))
        match draw(st.sampled_from(['flip', 'cut', 'double', 'insert', 'end'])):
            case 'flip' if start < len(data):
                data[start] ^= 1 << draw(st.integers(0, 7))
            case 'cut':
                del data[start:end]
            case 'double':
                data[end:end] = data[start:end]
            case 'insert':
                data[start:start] = draw(st.sampled_from(TOKENS) | st.binary(min_size=1, max_size=6))
            case 'end':
                del data[start:]
    return bytes(data)


TOKENS = [
    *(
        b'\0',
        b'\n',
        b'"',
        b'[]',
        b'{}',
        b'[',
        b'{',
        b'null',
        b'-1',
        b'1e999',
        b'NaN',
        b'../',
        b'/etc/passwd',
        b'\xff\xfe',
        b'&a ',
    ),
    *(b'*a', b'<<: ', b'!!python/object:os.system', b'<!DOCTYPE x [<!ENTITY a "b">]>', b'&a;', b'99999999999999999999', b'\t'),
]
any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(['a.png', '../a.png', 1, 7]),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=3), parts, max_size=3),
    max_leaves=6,
)


@st.composite
def altered(draw: st.DrawFn, example: object) -> object:
    """A JSON value with one or two of its parts replaced by any other, or left out."""
    value = json.loads(json.dumps(example))
    for _ in range(draw(st.integers(1, 2))):
        held: object = value
        while True:
            keys = list(held) if isinstance(held, dict) else list(range(len(held)))  # type: ignore[arg-type]
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(held[key], dict | list) and draw(st.booleans()):  # type: ignore[index]
                held = held[key]  # type: ignore[index]
                continue
            if draw(st.booleans()):
                held[key] = draw(any_json)  # type: ignore[index]
            else:
                del held[key]  # type: ignore[attr-defined]
            break
    return value


def read_all(split: Callable[[], object]) -> None:
    """Opens a split and reads its samples, which may fail each with its own error only."""
    try:
        source = split()
    except LISTS as error:
        assert str(error)
        return
    with suppress(FileNotFoundError):
        source.check_files()  # type: ignore[attr-defined]
    for index in range(min(len(source), 3)):  # type: ignore[arg-type]
        try:
            source.name(index)  # type: ignore[attr-defined]
            source.read(Draw(index))  # type: ignore[attr-defined]
        except SampleError as error:
            assert str(error)


@SETTINGS
@given(mutated(*(encoded(PIXELS, kind) for kind in ('PNG', 'JPEG', 'BMP', 'GIF', 'TIFF', 'WEBP', 'PPM'))))
def test_images(tmp_path: Path, data: bytes) -> None:
    (tmp_path / 'a').write_bytes(data)
    try:
        assert read_image(tmp_path / 'a').shape[2] == 3
    except SampleError as error:
        assert str(error).startswith(f'{tmp_path / "a"}: ')


@SETTINGS
@given(mutated(encoded(PIXELS[..., 0], 'PNG'), encoded(PIXELS[..., 0], 'GIF'), encoded(PIXELS[..., 0], 'TIFF')))
def test_label_maps(tmp_path: Path, data: bytes) -> None:
    (tmp_path / 'a').write_bytes(data)
    try:
        assert read_labels(tmp_path / 'a').ndim == 2
    except SampleError as error:
        assert str(error).startswith(f'{tmp_path / "a"}: ')


RECIPE = (
    b'task: segmentation\nmodel: {name: unet, channels: &c [8, 16]}\nother: {<<: {a: 1}, b: *c}\nlosses:\n- dice\n- x: 1e-3\n'
)


@SETTINGS
@given(mutated(RECIPE))
def test_recipes(tmp_path: Path, data: bytes) -> None:
    (tmp_path / 'a.yml').write_bytes(data)
    try:
        assert isinstance(read(tmp_path / 'a.yml').value, dict)
    except ConfigError as error:
        assert error.problems


COCO = {
    'images': [{'id': 1, 'file_name': 'a.png', 'height': 9, 'width': 7}],
    'annotations': [{'id': 1, 'image_id': 1, 'category_id': 3, 'bbox': [1, 1, 3, 4], 'area': 12.0, 'iscrowd': 0}],
    'categories': [{'id': 3, 'name': 'cat'}],
}


@SETTINGS
@given(altered(COCO).map(lambda value: json.dumps(value).encode()) | mutated(json.dumps(COCO).encode()))
def test_coco(tmp_path: Path, data: bytes) -> None:
    (tmp_path / 'a.png').write_bytes(encoded(PIXELS, 'PNG'))
    (tmp_path / 'a.json').write_bytes(data)
    read_all(lambda: CocoJson(root=tmp_path, train='a.json', eval='a.json', train_images='', eval_images='').split('train'))


VOC = (
    b'<annotation><size><width>7</width><height>9</height></size><object><name>cat</name><difficult>0</difficult>'
    b'<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>5</ymax></bndbox></object></annotation>'
)


@SETTINGS
@given(mutated(VOC), mutated(b'a.png a.xml\n'))
def test_voc(tmp_path: Path, xml: bytes, listed: bytes) -> None:
    (tmp_path / 'a.png').write_bytes(encoded(PIXELS, 'PNG'))
    (tmp_path / 'a.xml').write_bytes(xml)
    (tmp_path / 'whole.txt').write_text('a.png a.xml\n')
    (tmp_path / 'broken.txt').write_bytes(listed)
    for name in ('whole.txt', 'broken.txt'):
        read_all(lambda name=name: PascalVOC(root=tmp_path, train=name, classes=('cat', 'dog')).split('train'))


@SETTINGS
@given(
    mutated(b'0 0.5 0.5 0.2 0.4\n1 0.1 0.1 0.2 0.2\n'), mutated(b'names: {0: cat, 1: dog}\nnc: 2\n', b'names: &n [cat, [*n]]\n')
)
def test_yolo(tmp_path: Path, boxes: bytes, names: bytes) -> None:
    (tmp_path / 'images').mkdir(exist_ok=True)
    (tmp_path / 'labels').mkdir(exist_ok=True)
    (tmp_path / 'images' / 'a.png').write_bytes(encoded(PIXELS, 'PNG'))
    (tmp_path / 'labels' / 'a.txt').write_bytes(boxes)
    (tmp_path / 'data.yaml').write_bytes(names)
    read_all(lambda: YoloText(root=tmp_path, train='images', eval='images', classes=('cat', 'dog')).split('train'))
    read_all(lambda: YoloText(root=tmp_path, train='images', eval='images').split('train'))


@SETTINGS
@given(mutated(b'a.png a_labels.png\na.png a_labels.png\n'), mutated(b'sky\nroad\n'))
def test_file_lists(tmp_path: Path, listed: bytes, classes: bytes) -> None:
    (tmp_path / 'a.png').write_bytes(encoded(PIXELS, 'PNG'))
    (tmp_path / 'a_labels.png').write_bytes(encoded(PIXELS[..., 0] % 2, 'PNG'))
    (tmp_path / 'train.txt').write_bytes(listed)
    (tmp_path / 'classes.txt').write_bytes(classes)
    read_all(lambda: FileList(root=tmp_path, classes=('sky', 'road')).split('train'))
    read_all(lambda: FileList(root=tmp_path).split('train'))


@SETTINGS
@given(mutated('a.png\t金曜日\na.png\tword\n'.encode()))
def test_label_files(tmp_path: Path, listed: bytes) -> None:
    (tmp_path / 'a.png').write_bytes(encoded(PIXELS, 'PNG'))
    (tmp_path / 'rec_gt_train.txt').write_bytes(listed)
    read_all(lambda: LabelFiles(root=tmp_path).split('train'))


TABLE = {
    'filename': 'a.png',
    'split': 'train',
    'html': {
        'structure': {'tokens': ['<thead>', '<tr>', '<td>', '</td>', '</tr>', '</thead>']},
        'cells': [{'tokens': ['<b>', 'a', '</b>'], 'bbox': [1, 1, 5, 4]}],
    },
}


@SETTINGS
@given(altered(TABLE).map(lambda value: json.dumps(value).encode()) | mutated(json.dumps(TABLE).encode()))
def test_pubtabnet(tmp_path: Path, line: bytes) -> None:
    (tmp_path / 'train').mkdir(exist_ok=True)
    (tmp_path / 'train' / 'a.png').write_bytes(encoded(PIXELS, 'PNG'))
    (tmp_path / 'outside.png').write_bytes(encoded(PIXELS, 'PNG'))
    (tmp_path / 'tables.jsonl').write_bytes(line + b'\n')
    read_all(lambda: PubTabNet(root=tmp_path, train='tables.jsonl').split('train'))


@pytest.mark.skipif(find_spec('lmdb') is None, reason='needs the extra lmdb')
@SETTINGS
@given(mutated(encoded(PIXELS, 'PNG')), mutated('金曜日'.encode()), mutated(b'2'))
def test_lmdb_records(tmp_path: Path, image: bytes, text: bytes, count: bytes) -> None:
    """The records; pages of a damaged database are beyond what its library, which maps them into memory, can survive."""
    import lmdb

    with lmdb.open(str(tmp_path / 'set'), map_size=2**20) as environment, environment.begin(write=True) as transaction:
        for key, value in {b'image-000000001': image, b'label-000000001': text, b'num-samples': count}.items():
            transaction.put(key, value)
    read_all(lambda: LmdbSets(root=tmp_path, train=('set',)).split('train'))


@SETTINGS
@given(mutated(b'not a database at all'))
def test_lmdb_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / 'set').mkdir(exist_ok=True)
    (tmp_path / 'set' / 'data.mdb').write_bytes(data)
    read_all(lambda: LmdbSets(root=tmp_path, train=('set',)).split('train'))


@SETTINGS
@given(st.data())
def test_checkpoints(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Also with a manifest that vouches for the changed file, as somebody would make it who means harm."""
    folder = tmp_path_factory.mktemp('run')
    checkpoints = Checkpoints(folder, keep=1)
    path = checkpoints.save(1, {'w': torch.ones(3)}, None, {'step': 1, 'optimizer': {'lr': 0.1, 'm': torch.ones(2)}}, True)
    whole = {file.name: file.read_bytes() for file in path.iterdir()}
    name = data.draw(st.sampled_from(sorted(whole)))
    whole[name] = data.draw(mutated(whole[name]))
    (path / name).write_bytes(whole[name])
    try:
        load(path)
    except CheckpointError as error:
        assert str(path) in str(error)
    if name != 'manifest.json':
        facts = json.loads(whole['manifest.json'])
        facts['files'][name] = {'bytes': len(whole[name]), 'sha256': hashlib.sha256(whole[name]).hexdigest()}
        del facts['seal']
        (path / 'manifest.json').write_text(json.dumps({**facts, 'format': 1}))
        try:
            load(path)
        except CheckpointError as error:
            assert str(path) in str(error)


@SETTINGS
@given(st.data())
def test_weights_in_a_file(tmp_path: Path, data: st.DataObject) -> None:
    (tmp_path / 'a.safetensors').write_bytes(
        data.draw(mutated(safetensors.torch.save({'w': torch.ones(3), 'b': torch.zeros(2)})))
    )
    try:
        read_weights(find(tmp_path / 'a.safetensors'))
    except CheckpointError as error:
        assert 'a.safetensors' in str(error)


@pytest.mark.parametrize('words', ['a: &a [1, 2, 3]', 'a: &a {x: 1, y: 2}'])
def test_a_recipe_whose_aliases_multiply_is_refused_at_once(tmp_path: Path, words: str) -> None:
    """26 letters, each ten times the one before: 10**25 nodes in 26 lines."""
    lines = [words, *(f'{new}: &{new} [{", ".join([f"*{old}"] * 10)}]' for old, new in pairwise(ascii_lowercase))]
    (tmp_path / 'bomb.yml').write_text('\n'.join(lines))
    with pytest.raises(ConfigError, match='aliases'):
        read(tmp_path / 'bomb.yml')


@pytest.mark.parametrize('text', ['a: &a [*a]', 'a: ' + '[' * 5000, 'a: &a {b: *a}'])
def test_a_recipe_without_end_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / 'a.yml').write_text(text)
    with pytest.raises(ConfigError):
        read(tmp_path / 'a.yml')


def test_a_list_that_leads_out_of_the_data_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / 'root' / 'train').mkdir(parents=True)
    (tmp_path / 'secret.png').write_bytes(encoded(PIXELS, 'PNG'))
    (tmp_path / 'root' / 'tables.jsonl').write_text(json.dumps({**TABLE, 'filename': '../../secret.png'}))
    with pytest.raises(ValueError, match='lies outside the data set'):
        PubTabNet(root=tmp_path / 'root', train='tables.jsonl').split('train')


def test_a_small_file_that_promises_a_huge_image_is_refused(tmp_path: Path) -> None:
    """144 million grey pixels in 140 kB of PNG; the header is enough to tell."""
    Image.new('L', (12000, 12000)).save(tmp_path / 'bomb.png')
    for read_one in (read_image, read_labels):
        with pytest.raises(SampleError, match='has 12000 x 12000 pixels, more than the 128 million that are decoded'):
            read_one(tmp_path / 'bomb.png')
