"""Shards that the writers of WebDataset and MosaicML Streaming themselves have written are read, and trained on as files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phalanx.data.samples import Draw
from phalanx.families.recognition.data import DATA as TEXTS
from phalanx.families.segmentation.data import DATA
from running import extended_python, losses, run_here

pytestmark = pytest.mark.long

NUMBER = 20
WRITE = """
import json, sys
from pathlib import Path
import numpy as np
from PIL import Image
from streaming import MDSWriter
from webdataset import ShardWriter

out, number = Path(sys.argv[1]), int(sys.argv[2])
def pixels(n): return np.random.default_rng(n).integers(0, 256, (40 + n, 60, 3), np.uint8)
def labels(n): return np.random.default_rng(n).integers(0, 2, (40 + n, 60), np.uint8)
(out / 'tar/train').mkdir(parents=True)
with ShardWriter(f'{out}/tar/train/set-%06d.tar', maxcount=7) as writer:
    for n in range(number):
        text = f'Zeile {n} für'
        writer.write({'__key__': f'a/{n:04}', 'png': pixels(n), 'seg.png': labels(n), 'txt': text, 'json': {'n': n}})
for image in ('png', 'pil', 'ndarray', 'ndarray:uint8'):
    columns = {'image': image, 'label': 'png' if image == 'png' else 'ndarray', 'n': 'int', 'text': 'str'}
    with MDSWriter(out=f'{out}/{image}/train', columns=columns, size_limit='64kb') as writer:
        for n in range(number):
            one = pixels(n) if 'ndarray' in image else Image.fromarray(pixels(n))
            of = Image.fromarray(labels(n)) if image == 'png' else labels(n)
            writer.write({'image': one, 'label': of, 'n': n, 'text': f'Zeile {n} für'})
with MDSWriter(out=f'{out}/packed/train', columns={'image': 'png', 'label': 'png'}, compression='zstd') as writer:
    writer.write({'image': Image.fromarray(pixels(0)), 'label': Image.fromarray(labels(0))})
"""
WRITE_ANNOTATED = """
import json, sys
from pathlib import Path
from PIL import Image
from streaming import MDSWriter
from webdataset import ShardWriter

out, annotations = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
(out / 'tar').mkdir()
with ShardWriter(f'{out}/tar/%06d.tar', maxcount=5) as writer:
    for n, annotation in enumerate(annotations):
        writer.write({'__key__': str(n), 'png': (out / f'images/{n}.png').read_bytes(), 'json': annotation})
with MDSWriter(out=f'{out}/mds', columns={'image': 'png', 'annotations': 'json'}, size_limit='64kb') as writer:
    for n, annotation in enumerate(annotations):
        writer.write({'image': Image.open(out / f'images/{n}.png'), 'annotations': annotation})
"""
BOX = [10, 20, 30, 25]  # x, y, width, height
OUTLINE = [[10, 20], [40, 20], [40, 45], [10, 45]]
TOKENS = ['<tbody>', '<tr>', '<td>', '</td>', '</tr>', '</tbody>']
HTML = {'structure': {'tokens': TOKENS}, 'cells': [{'tokens': ['a'], 'bbox': [10, 20, 40, 45]}]}
# Family: recipe, its keys, the annotation of a sample, and the same data as files.
FAMILIES = {
    'detection': (
        'ppyoloe_digits',
        ('data={{{}, classes: [even, odd]}}', 'transforms=[random_flip, {name: batch_random_resize, sizes: [64]}]'),
        [{'bbox': BOX, 'category_id': 1}],
        'name: coco, train: files.json, eval: files.json, train_images: images, eval_images: images',
    ),
    'text_detection': (
        'db_pages',
        ('data={{{}}}',),
        [{'transcription': 'a', 'points': OUTLINE}],
        'name: label_files, train: [files.txt], eval: [files.txt], images: images',
    ),
    'table': (
        'slanet_rendered',
        ('data={{{}}}', 'image_size=64', 'max_length=20'),
        {'html': HTML},
        'name: pubtabnet, train: files.jsonl, eval: files.jsonl, train_images: images, eval_images: images',
    ),
}


@pytest.fixture(scope='module')
def python() -> str:
    return extended_python('shards', 'webdataset', 'mosaicml-streaming')


@pytest.fixture(scope='module')
def written(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('shards')
    subprocess.run([python, '-c', WRITE, folder, str(NUMBER)], check=True)
    return folder


@pytest.mark.parametrize('kind', ['tar', 'png', 'pil', 'ndarray', 'ndarray:uint8'])
def test_samples_are_those_that_were_written(written: Path, kind: str) -> None:
    pairs = DATA['shards'](root=written / kind, classes=('even', 'odd')).split('train')
    texts = TEXTS['shards'](root=written / kind, text='txt;text').split('train')
    assert len(pairs) == len(texts) == NUMBER
    assert len({pairs.files(Draw(n))[0] for n in range(NUMBER)}) > 1
    for n in range(NUMBER):
        image, labels = pairs.read(Draw(n))
        assert (image == np.random.default_rng(n).integers(0, 256, (40 + n, 60, 3), np.uint8)).all()
        assert (labels == np.random.default_rng(n).integers(0, 2, (40 + n, 60), np.uint8)).all()
        assert texts.read(Draw(n))[1] == f'Zeile {n} für'


def test_compressed_shards_are_refused_with_the_fix(written: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r'compressed \(zstd\); unpack the shards or write them without'):
        DATA['shards'](root=written / 'packed', classes=('even', 'odd')).split('train')


@pytest.mark.parametrize('family', FAMILIES)
def test_a_training_on_shards_is_that_on_files(python: str, tmp_path: Path, family: str) -> None:
    recipe, (data, *keys), annotation, files = FAMILIES[family]
    (tmp_path / 'images').mkdir()
    for n in range(NUMBER):
        pixels = np.random.default_rng(n).integers(0, 256, (64, 64 + n, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f'images/{n}.png')
    images = [{'id': n, 'file_name': f'{n}.png', 'width': 64 + n, 'height': 64} for n in range(NUMBER)]
    objects = [{**annotation[0], 'id': n, 'image_id': n} for n in range(NUMBER)] if family == 'detection' else []
    categories = [{'id': number, 'name': name} for number, name in enumerate(('even', 'odd'))]
    (tmp_path / 'files.json').write_text(json.dumps({'images': images, 'annotations': objects, 'categories': categories}))
    (tmp_path / 'files.txt').write_text('\n'.join(f'{n}.png\t{json.dumps(annotation)}' for n in range(NUMBER)))
    if family == 'table':
        lines = (json.dumps({'filename': f'{n}.png', **annotation}) for n in range(NUMBER))
        (tmp_path / 'files.jsonl').write_text('\n'.join(lines))
    (tmp_path / 'annotations').write_text(json.dumps([annotation] * NUMBER))
    subprocess.run([python, '-c', WRITE_ANNOTATED, tmp_path, str(tmp_path / 'annotations')], check=True)
    fixed = ('train.global_batch_size=4', 'train.workers=0', 'evaluate.enabled=false', 'train.steps=6', 'report.every=1')
    ids, found = ', first_id: 0' if family == 'detection' else '', {}  # shards have no `categories`
    for kind, chosen in (
        ('files', files),
        *((kind, f'name: shards, train: {kind}, eval: {kind}{ids}') for kind in ('tar', 'mds')),
    ):
        own = data.format(f'root: "{tmp_path}", {chosen}')
        words = ['train', recipe, '--save_dir', str(tmp_path / f'run {kind}'), '--set', *fixed, *keys, own, 'device=cpu']
        assert run_here(*words) == 0
        found[kind] = losses(tmp_path / f'run {kind}')
    assert found['tar'] == found['mds'] == found['files']
    assert len(set(found['files'])) == 6
