"""Shards that the writers of WebDataset and MosaicML Streaming themselves have written are read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.samples import Draw
from phalanx.families.recognition.data import DATA as TEXTS
from phalanx.families.segmentation.data import DATA
from running import extended_python

pytestmark = pytest.mark.long

NUMBER = 20
WRITE = """
import sys
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


@pytest.fixture(scope='module')
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = extended_python('shards', 'webdataset', 'mosaicml-streaming')
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
