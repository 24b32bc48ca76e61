"""`phalanx data rewrite` makes data sets that the family reads again."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from phalanx.cli.data import command
from phalanx.families.detection.data.voc import PascalVOC
from phalanx.families.recognition.data.lmdb_sets import LmdbSets
from phalanx.system.errors import RequestError


def test_the_boxes_of_a_recipe_are_written_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ['data.train_scenes=2', 'data.eval_scenes=1', 'data.size=[48,64]']
    words = ['rewrite', 'ppyoloe_digits', '--as', 'voc', '--out', str(tmp_path / 'out'), '--set', *sizes]
    assert command(words) == 0
    keys = json.loads(capsys.readouterr().out.splitlines()[0].removeprefix('in a recipe: data: '))
    assert keys.pop('name') == 'pascal_voc'
    assert len(PascalVOC(**{**keys, 'root': Path(keys['root'])}).split('train')) == 2
    sizes_written = [ElementTree.parse(file).find('size') for file in (tmp_path / 'out').rglob('*.xml')]
    assert [[part.text for part in size or ()] for size in sizes_written] == [['64', '48', '3']] * 3  # width, height, depth
    with pytest.raises(RequestError, match='exists already; give a new folder'):
        command(words)


def test_the_texts_of_a_recipe_become_databases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip('lmdb')
    sizes = ['data.train_lines=3', 'data.eval_lines=2']
    assert command(['rewrite', 'crnn_digits', '--as', 'lmdb', '--out', str(tmp_path / 'out'), '--set', *sizes]) == 0
    keys = json.loads(capsys.readouterr().out.splitlines()[0].removeprefix('in a recipe: data: '))
    assert keys == {'root': str(tmp_path / 'out'), 'name': 'lmdb_sets', 'train': ['train'], 'eval': ['val']}
    read = LmdbSets(root=tmp_path / 'out', train=tuple(keys['train']), eval=tuple(keys['eval']))
    assert (len(read.split('train')), len(read.split('eval'))) == (3, 2)


@pytest.mark.parametrize(
    ('recipe', 'form', 'message'),
    [
        ('pp_liteseg_digits', 'coco', 'the data of Segmentation cannot be written in another format'),
        ('ppyoloe_digits', 'lmdb', 'the data of Detection can be written as coco, voc, yolo'),
    ],
)
def test_a_format_of_another_family_is_refused(recipe: str, form: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=message):
        command(['rewrite', recipe, '--as', form, '--out', str(tmp_path / 'out')])
