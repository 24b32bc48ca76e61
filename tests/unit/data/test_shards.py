"""Shards of WebDataset and MosaicML Streaming are read sample by sample; what cannot be read that way is refused."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phalanx.data.samples import Draw, SampleError
from phalanx.families.detection.data import DATA as BOXES
from phalanx.families.recognition.data import DATA as TEXTS
from phalanx.families.segmentation.data import DATA
from phalanx.families.table.data import DATA as TABLES
from phalanx.families.text_detection.data import DATA as PAGES
from phalanx.system.paths import parse_path
from running import TINY, losses, run_here
from stores import Store

NAMES = ('even', 'odd')
IMAGES = [np.random.default_rng(number).integers(0, 256, (64, 96, 3), np.uint8) for number in range(9)]
LABELS = [np.random.default_rng(number).integers(0, 2, (64, 96), np.uint8) for number in range(9)]


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, 'PNG')
    return file.getvalue()


def write_tar(file: Path, members: dict[str, bytes]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, 'w', format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def pairs(*numbers: int) -> dict[str, bytes]:
    """Members of a tar file, as WebDataset writes them: those of a sample side by side."""
    members = {}
    for number in numbers:
        members |= {f'{number:04}.png': png(IMAGES[number]), f'{number:04}.seg.png': png(LABELS[number])}
    return members


def write_mds(folder: Path, columns: dict[str, str], samples: list[list[bytes]], per_shard: int, **more: object) -> None:
    """Shards as `streaming` writes them: the number of samples, [N + 1] positions, the configuration, the samples."""
    folder.mkdir(parents=True)
    shards = []
    for number, begin in enumerate(range(0, len(samples), per_shard)):
        blocks = [
            b''.join(np.uint32(len(data)).tobytes() for data in sample) + b''.join(sample)
            for sample in samples[begin : begin + per_shard]
        ]
        config = json.dumps({'column_names': sorted(columns)}).encode()
        places = np.cumsum([4 * (len(blocks) + 2) + len(config), *map(len, blocks)]).astype(np.uint32)
        data = np.uint32(len(blocks)).tobytes() + places.tobytes() + config + b''.join(blocks)
        (folder / f'shard.{number:05}.mds').write_bytes(data)
        raw = {'basename': f'shard.{number:05}.mds', 'bytes': len(data), 'hashes': {}}
        facts = {'format': 'mds', 'version': 2, 'samples': len(blocks), 'compression': None, 'raw_data': raw, 'zip_data': None}
        names = sorted(columns)
        kinds = {'column_encodings': [columns[name] for name in names], 'column_sizes': [None] * len(names)}
        shards.append(facts | {'column_names': names} | kinds | more)
    (folder / 'index.json').write_text(json.dumps({'version': 2, 'shards': shards}))


def check_pairs(source, numbers: range) -> None:
    assert len(source) == len(numbers)
    for index, number in enumerate(numbers):
        image, labels = source.read(Draw(index))
        assert (image == IMAGES[number]).all()
        assert (labels == LABELS[number]).all()


def test_samples_of_tar_files_come_in_the_order_of_the_shards(tmp_path: Path) -> None:
    """Members without a suffix, folders, and those between underscores are no samples, as WebDataset has it."""
    write_tar(tmp_path / 'train/set-01.tar', pairs(3, 4, 5, 6, 7, 8))
    write_tar(tmp_path / 'train/set-00.tar', {'__meta__/a.json': b'{}', '__info__': b'', 'README': b'', **pairs(0, 1, 2)})
    for train in ('train', 'train/set-*.tar', 'train/set-{00..01}.tar'):
        source = DATA['shards'](root=tmp_path, train=train, classes=NAMES).split('train')
        check_pairs(source, range(9))
    assert source.name(4) == str(tmp_path / 'train/set-01.tar:0004.png')
    assert source.files(Draw(4)) == [str(tmp_path / 'train/set-01.tar')]
    assert not source.notes


@pytest.mark.parametrize('image', ['png', 'bytes', 'pil', 'ndarray', 'ndarray:uint8', 'ndarray:uint8:64,96,3'])
def test_samples_of_mds_come_in_the_order_of_the_index(tmp_path: Path, image: str) -> None:
    def encode(pixels: np.ndarray) -> bytes:
        dtype, shape = bytes([8]), bytes([3 << 2, *pixels.shape])
        head = {'pil': np.array([96, 64, 3], np.uint32).tobytes() + b'RGB', 'ndarray': dtype + shape, 'ndarray:uint8': shape}
        return png(pixels) if image in ('png', 'bytes') else head.get(image, b'') + pixels.tobytes()

    samples = [[encode(one), png(labels), b'7'] for one, labels in zip(IMAGES, LABELS, strict=True)]
    write_mds(tmp_path / 'train', {'Image': image, 'label': 'png', 'number': 'str_int'}, samples, per_shard=4)
    source = DATA['shards'](root=tmp_path, classes=NAMES).split('train')
    check_pairs(source, range(9))
    assert source.name(8) == str(tmp_path / 'train/shard.00002.mds:0.Image')
    assert source.notes == {'columns are not used: number': 1}


def test_texts_come_from_both_kinds_of_shards(tmp_path: Path) -> None:
    texts = [f'Zeile {number} für' for number in range(9)]
    write_tar(
        tmp_path / 'train/0.tar',
        {
            k: v
            for n in range(9)
            for k, v in ((f'{n}.PNG', png(IMAGES[n])), (f'{n}.txt', texts[n].encode()), (f'{n}.json', b''))
        },
    )
    write_mds(tmp_path / 'val', {'image': 'png', 'text': 'str'}, [[png(IMAGES[n]), texts[n].encode()] for n in range(9)], 9)
    data = TEXTS['shards'](root=tmp_path)
    for split in ('train', 'eval'):
        source = data.split(split)
        assert [source.read(Draw(index))[1] for index in range(len(source))] == texts
    assert data.split('train').notes == {'fields .json are not used': 9}


def write_annotated(root: Path, kind: str, *annotations: str) -> None:
    """Images with an annotation each, as tar files, whose suffix is `kind`, or as MDS, whose column has that encoding."""
    if kind in ('json', 'str'):
        samples = [[png(IMAGES[number]), text.encode()] for number, text in enumerate(annotations)]
        write_mds(root / 'train', {'image': 'png', 'label': kind}, samples, 2)
    else:
        members = {}
        for number, text in enumerate(annotations):
            members |= {f'{number}.png': png(IMAGES[number]), f'{number}.{kind}': text.encode()}
        write_tar(root / 'train/0.tar', members)


XML = '<annotation>{}</annotation>'
ODD = '<object><name>odd</name><bndbox><xmin>8</xmin><ymin>4</ymin><xmax>32</xmax><ymax>20</ymax></bndbox></object>'
OF_COCO = [{'bbox': [8, 4, 24, 16], 'category_id': 1, 'area': 99}]


@pytest.mark.parametrize(
    ('kind', 'first', 'second', 'area'),
    [
        ('boxes', json.dumps(OF_COCO), '[]', 99),
        ('str', json.dumps([{'bbox': [8, 4, 24, 16], 'category': 'odd'}]), '[]', 384),
        ('json', json.dumps({'annotations': OF_COCO, 'width': 96, 'height': 64}), '{"annotations": []}', 99),
        (
            'json',
            json.dumps({'annotations': [{**OF_COCO[0], 'category_id': 7}], 'categories': [{'id': 7, 'name': 'odd'}]}),
            '{"annotations": []}',
            99,
        ),
        ('xml', XML.format(ODD), XML.format(''), 384),
        ('txt', f'1 {20 / 96} {12 / 64} {24 / 96} {16 / 64}', '', 384),
    ],
)
def test_boxes_come_from_the_three_formats(tmp_path: Path, kind: str, first: str, second: str, area: float) -> None:
    write_annotated(tmp_path, kind, first, second, first)
    data = BOXES['shards'](root=tmp_path, eval='train', classes=NAMES, first_id=0)
    source, evaluated = data.split('train'), data.split('eval')
    assert (len(source), len(evaluated)) == (2, 3)
    assert source.notes['images without objects, left out'] == 1
    image, objects = source.read(Draw(1))
    assert (image == IMAGES[2]).all()
    assert objects.boxes.tolist() == [[8, 4, 32, 20]]
    assert (objects.classes.tolist(), objects.areas.tolist(), objects.ignored.tolist()) == ([1], [area], [False])
    assert len(evaluated.read(Draw(1))[1]) == 0
    assert Path(source.name(1)).name.startswith(('0.tar:2.png', 'shard.00001.mds:0.image'))
    assert source.files(Draw(1))[0] in source.name(1)


@pytest.mark.parametrize(
    ('annotations', 'message'),
    [
        (['{"objects": {"bbox": [[1, 2, 3, 4]]}}'], r'0\.tar:0\.boxes: expected COCO\'s objects'),
        (['[1, 2]'], r'0\.tar:0\.boxes: expected COCO\'s objects'),
        (
            [json.dumps([{'bbox': [1, 2, 3, 4], 'category_id': label} for label in (0, 2)])],
            r'category_id 2 is not the id of a category \(they are 0, 1\)',
        ),
        ([json.dumps([{'bbox': [1, 2, 3, 4], 'category': 'none'}])], r"object 1: 'none' is not a class; data.classes names 2"),
        ([json.dumps([{'bbox': [1, 2, 3], 'category_id': 0}])], 'x, y, width and height'),
        (
            [json.dumps([{'bbox': [1, 2, 3, 4], 'category_id': 1}])],
            r'ids may begin with 1: set data\.first_id to the id of .*, 0 or 1',
        ),
        (['[{'], r'0\.boxes: is not JSON'),
        (['5 0.5 0.5 0.1 0.1'], r'0\.boxes:1: class 5 is not one of 0 to 1'),
        (['1 50 50 10 10'], 'which may be pixels'),
        (['<other/>'], 'is not an annotation of VOC'),
        (['[]', '1 0.5 0.5 0.1 0.1'], 'boxes of different formats; write them in one'),
        (['[]', ''], 'not one of 2 images has an object'),
    ],
)
def test_boxes_that_cannot_be_understood_are_refused(tmp_path: Path, annotations: list[str], message: str) -> None:
    write_annotated(tmp_path, 'boxes', *annotations)
    with pytest.raises(ValueError, match=message):
        BOXES['shards'](root=tmp_path, classes=NAMES).split('train')


def test_ids_of_classes_begin_where_the_recipe_says(tmp_path: Path) -> None:
    write_annotated(tmp_path, 'boxes', json.dumps([{'bbox': [1, 2, 3, 4], 'category_id': label} for label in (1, 2)]))
    source = BOXES['shards'](root=tmp_path, classes=NAMES, first_id=1).split('train')
    assert source.read(Draw(0))[1].classes.tolist() == [0, 1]


def test_pages_and_tables_come_from_shards(tmp_path: Path) -> None:
    """Texts in both of their formats; of a table, the length without reading its image."""
    outline = [[1, 2], [9, 2], [9, 8], [1, 8]]
    listed = json.dumps([{'transcription': 'für', 'points': outline}, {'transcription': '###', 'points': outline}])
    for kind, text in (('json', listed), ('txt', '1,2,9,2,9,8,1,8,für\n1,2,9,2,9,8,1,8,###\n')):
        write_annotated(tmp_path / f'pages {kind}', kind, text, '[]' if kind == 'json' else '')
        source = PAGES['shards'](root=tmp_path / f'pages {kind}').split('train')
        image, texts = source.read(Draw(0))
        assert (image == IMAGES[0]).all()
        assert [points.tolist() for points in texts.outlines] == [outline, outline]
        assert (texts.strings, texts.ignored) == (('für', '###'), (False, True))
        assert len(source.read(Draw(1))[1]) == 0
    tokens = ['<tbody>', '<tr>', '<td>', '</td>', '<td', ' colspan="2"', '>', '</td>', '</tr>', '</tbody>']
    cells = [{'tokens': ['a'], 'bbox': [1, 2, 9, 8]}, {'tokens': []}]
    for kind in ('json', 'str'):
        write_annotated(tmp_path / f'{kind}s', kind, json.dumps({'html': {'structure': {'tokens': tokens}, 'cells': cells}}))
        source = TABLES['shards'](root=tmp_path / f'{kind}s').split('train')
        image, table = source.read(Draw(0))
        assert (image == IMAGES[0]).all()
        assert (list(table.structure), table.cells[0].box) == (tokens, (1, 2, 9, 8))
        assert (source.tokens.tolist(), source.plain.tolist()) == ([10], [1])


@pytest.mark.parametrize(
    ('data', 'text', 'message'),
    [
        (PAGES, '[{"text": "a"}]', r'0\.tar:0\.json: text 1: expected \{"transcription"'),
        (PAGES, '{"texts": []}', r'0\.tar:0\.json: expected a list of texts'),
        (PAGES, '1,2,3,a', r'0\.tar:0\.json:1: expected x1,y1'),
        (TABLES, '{"cells": []}', r'0\.tar:0\.json: has no html\.structure\.tokens'),
    ],
)
def test_texts_and_tables_that_cannot_be_understood_are_refused(tmp_path: Path, data: dict, text: str, message: str) -> None:
    write_tar(tmp_path / 'train/0.tar', {'0.png': png(IMAGES[0]), '0.json': text.encode()})
    with pytest.raises(ValueError, match=message):
        data['shards'](root=tmp_path).split('train')


@pytest.mark.parametrize(
    ('members', 'message'),
    [
        ({'0.png': b'', '0.txt': b''}, r'0 has no field for data.labels: seg.png;.*; it has png \(data.image\), txt'),
        ({**pairs(0), '0000.PNG': b''}, 'has 0000.PNG twice'),
        # the same sample again later is another one for WebDataset, which would have no image
        ({**pairs(0), '1.jpg': b'', '1.png': b'', '0000.mask.png': b''}, '0000 has no field for data.image'),
        ({}, 'hold no samples'),
    ],
)
def test_samples_that_lack_a_field_are_refused(tmp_path: Path, members: dict[str, bytes], message: str) -> None:
    write_tar(tmp_path / 'train/0.tar', members)
    with pytest.raises(ValueError, match=message):
        DATA['shards'](root=tmp_path, classes=NAMES).split('train')


def test_tar_files_that_are_cut_off_or_joined_are_refused(tmp_path: Path) -> None:
    """tarfile and WebDataset end such a file without a word, and the samples behind are lost."""
    write_tar(tmp_path / 'train/0.tar', pairs(0, 1))
    whole = (tmp_path / 'train/0.tar').read_bytes()
    for cut in range(512, len(whole.rstrip(b'\0')) + 512, 2048):
        (tmp_path / 'train/0.tar').write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r'is cut off|is not a complete tar file'):
            DATA['shards'](root=tmp_path, classes=NAMES).split('train')
    (tmp_path / 'train/0.tar').write_bytes(whole + whole)
    with pytest.raises(ValueError, match='more follows behind its end'):
        DATA['shards'](root=tmp_path, classes=NAMES).split('train')
    (tmp_path / 'train/0.tar').rename(tmp_path / 'train/0.tar.gz')
    with pytest.raises(FileNotFoundError, match=r'0\.tar\.gz is compressed, which allows no access to single samples'):
        DATA['shards'](root=tmp_path, classes=NAMES).split('train')


@pytest.mark.parametrize(
    ('columns', 'more', 'message'),
    [
        ({'image': 'pkl', 'label': 'png'}, {}, 'encoding pkl, which runs code'),
        ({'image': 'png', 'label': 'int'}, {}, 'encoding int, which is none of'),
        ({'image': 'png', 'number': 'png'}, {}, r'has no field for data.labels: .*; it has image \(data.image\), number'),
        ({'image': 'png', 'label': 'png'}, {'format': 'csv'}, "format 'csv', version 2; mds, 2 is read"),
        (
            {'image': 'png', 'label': 'png'},
            {'compression': 'zstd:3', 'zip_data': {}, 'raw_data': {'basename': 'none', 'bytes': 0}},
            'none: there is no such shard',
        ),
        ({'image': 'png', 'label': 'png'}, {'raw_data': {'basename': '../x', 'bytes': 0}}, 'leads out|outside'),
        ({'image': 'png', 'label': 'png'}, {'raw_data': {'basename': 'shard.00000.mds', 'bytes': 9}}, 'it is cut off'),
    ],
)
def test_mds_shards_that_cannot_be_read_are_refused(
    tmp_path: Path, columns: dict[str, str], more: dict[str, object], message: str
) -> None:
    write_mds(tmp_path / 'train', columns, [[png(IMAGES[0]), png(LABELS[0])]], 1, **more)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        DATA['shards'](root=tmp_path, classes=NAMES).split('train')


def test_a_damaged_sample_is_named(tmp_path: Path) -> None:
    write_tar(tmp_path / 'train/0.tar', pairs(0) | {'0001.png': b'no image', '0001.seg.png': png(LABELS[1])})
    source = DATA['shards'](root=tmp_path, classes=NAMES).split('train')
    with pytest.raises(SampleError, match=re.escape('0.tar:0001.png: is not an image')):
        source.read(Draw(1))


def test_a_training_on_shards_in_a_bucket_is_that_on_files(store: Store, tmp_path: Path) -> None:
    """Stopped within an epoch and continued; each shard is fetched once."""
    files = tmp_path / 'files'
    files.mkdir()
    for number in range(9):
        Image.fromarray(IMAGES[number]).save(files / f'{number}.png')
        Image.fromarray(LABELS[number]).save(files / f'{number}_mask.png')
    (files / 'train.txt').write_text('\n'.join(f'{n}.png {n}_mask.png' for n in range(9)))
    write_tar(tmp_path / 'shards/train/0.tar', pairs(0, 1, 2, 3))
    write_tar(tmp_path / 'shards/train/1.tar', pairs(4, 5, 6, 7, 8))
    store.put(tmp_path / 'shards', 'tests/set')
    words = [word for word in TINY if not word.startswith(('data.', 'train.global'))]

    def train(folder: str, data: str, *more: str) -> None:
        data = f'data={{{data}, classes: [even, odd]}}'
        fixed = ('train.steps=8', 'train.global_batch_size=3', 'evaluate.enabled=false')
        assert run_here('train', *words, *fixed, data, *more, '--save_dir', str(tmp_path / folder)) == 0

    train('local', f'name: file_list, root: "{files}", eval: train.txt')
    train('remote', 'name: shards, root: "s3://tests/set", eval: train', 'train.until=4')
    train('remote', 'name: shards, root: "s3://tests/set", eval: train')
    assert losses(tmp_path / 'remote') == losses(tmp_path / 'local')
    assert parse_path('s3://tests/set').is_dir()
    assert [store.gets(f'/tests/set/train/{number}.tar') for number in (0, 1)] == [1, 1]
