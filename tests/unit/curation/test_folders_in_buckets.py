"""Commands take folders and files in buckets as they take those of a disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from drawn import COUNT, draw, mask_of
from phalanx.data.checks import AnnotationError
from phalanx.system.buckets import StoreError
from phalanx.system.paths import parse_path
from running import Command
from stores import Store


@pytest.fixture
def masks(store: Store, tmp_path: Path) -> str:
    """Images and their masks, in a bucket."""
    for number in range(COUNT):
        draw(tmp_path / f'set/images/part {number}.png', number)
        path = tmp_path / f'set/masks/part {number}.png'
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(mask_of(number)).save(path)
    store.put(tmp_path / 'set', 'tests/set')
    return 's3://tests/set'


def test_new_writes_the_same_lists_for_a_bucket_as_for_a_disk(masks: str, phalanx_here: Command, tmp_path: Path) -> None:
    for folder, out in ((str(tmp_path / 'set'), 'local'), (masks, 'remote')):
        done = phalanx_here('new', folder, '--out', out, '--no_trial')
        assert done.returncode == 0, done.stderr
    assert 's3://tests/set: fetched to' in done.stdout
    for name in ('train.txt', 'val.txt'):
        here, there = ((tmp_path / out / name).read_text() for out in ('local', 'remote'))
        assert there.replace('fetched/set/', '') == here.replace('set/', '')


def test_prepare_leaves_only_its_result(masks: str, phalanx_here: Command, tmp_path: Path) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    done = phalanx_here('data', 'prepare', 'masks', masks, '--out', 'prepared')
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} - before - {'cache'} == {'prepared'}
    assert len(list((tmp_path / 'prepared/images').rglob('*.png'))) == COUNT


def test_prepare_does_not_write_to_a_bucket(masks: str, phalanx_here: Command) -> None:
    done = phalanx_here('data', 'prepare', 'masks', masks, '--out', 's3://tests/new')
    assert done.returncode == 2
    assert 'give a folder of this machine' in done.stderr


def test_an_object_whose_name_leads_out_of_its_folder_is_not_copied(store: Store, tmp_path: Path) -> None:
    store.objects['/tests/set/../../evil'] = b''
    with pytest.raises((StoreError, AnnotationError)):
        parse_path('s3://tests/set').copy_to(tmp_path / 'copy')  # type: ignore[attr-defined]
    assert not (tmp_path / 'evil').exists()
