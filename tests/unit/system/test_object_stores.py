"""Paths in buckets read like those of a disk; each object is fetched once, and failures of the store are bridged."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drawn import draw, mask_of
from phalanx.data.folders import check_present
from phalanx.data.image import read_image
from phalanx.data.samples import SampleError
from phalanx.system import buckets
from phalanx.system.buckets import BucketOptions, StoreError, StorePath, UrlError, fetch_ahead, fetched, upload
from phalanx.system.paths import normalise_path, parse_path, shorten_path
from running import TINY, losses, run_here
from stores import SECRET, Store, serve

ROOT = parse_path('s3://tests/set')


def write_pairs(folder: Path) -> None:
    """A `file_list`: 12 images and label maps to train on, 4 to evaluate."""
    folder.mkdir()
    for split, numbers in (('train', range(12)), ('val', range(12, 16))):
        for number in numbers:
            draw(folder / f'{split}/{number}.png', 2 * number, (96, 64))
            Image.fromarray(np.resize(mask_of(number % 10), (64, 96))).save(folder / f'{split}/{number}_mask.png')
        lines = [f'{split}/{number}.png {split}/{number}_mask.png' for number in numbers]
        (folder / f'{split}.txt').write_text('\n'.join(lines))
    (folder / 'classes.txt').write_text('ground\nbolt\nnut\n')


def put(store: Store, *names: str) -> None:
    store.objects |= {f'/tests/set/{name}': name.encode() for name in names}


def test_a_path_in_a_bucket_reads_like_one_on_a_disk(store: Store, tmp_path: Path) -> None:
    names = ['a.txt', 'b/c d#ü%20.txt', 'b/d/e.png', 'b/f.txt']
    put(store, *names)
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    for below in ('.', *names, 'b', 'b/d', 'none', 'b/none.txt'):
        there, here = ROOT / below, tmp_path / below
        assert (there.is_file(), there.is_dir(), there.exists()) == (here.is_file(), here.is_dir(), here.exists())
    assert [(ROOT / name).read_text() for name in names] == names
    assert sorted(path.name for path in ROOT.iterdir()) == ['a.txt', 'b']
    assert [path.relative_to(ROOT).as_posix() for path in ROOT.glob('b/*.txt')] == [names[1], names[3]]
    assert {path.name for path in ROOT.rglob('*.txt')} == {'a.txt', 'f.txt', 'c d#ü%20.txt'}
    assert (ROOT / 'b/f.txt').stat().st_size == (tmp_path / 'b/f.txt').stat().st_size


def test_a_path_in_a_bucket_keeps_its_two_slashes() -> None:
    assert str(ROOT / 'a') == 's3://tests/set/a'
    assert pickle.loads(pickle.dumps(ROOT)) == ROOT  # noqa: S301
    assert str((ROOT / 'a').parent) == str(ROOT) == shorten_path(ROOT) == str(normalise_path(ROOT / 'b' / '..'))
    assert str((ROOT / 'a').relative_to(ROOT)) == 'a'


@pytest.mark.parametrize(
    'url', [f's3://key:{SECRET}@tests/set', f'https://h/set?X-Amz-Signature={SECRET}', f'az://a/b?sig={SECRET}']
)
def test_a_url_with_a_secret_is_refused_without_repeating_it(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(UrlError, match='environment') as caught:
        parse_path(url)
    assert SECRET not in str(caught.value)
    parser = ArgumentParser()
    parser.add_argument('folder', type=parse_path)
    with pytest.raises(SystemExit):
        parser.parse_args([url])
    assert run_here('config', 'pp_liteseg', '--set', f'data={{name: file_list, root: "{url}"}}') == 2
    assert run_here('config', 'pp_liteseg', '--set', f'train.init_from={url}') == 2
    commands = (
        ['train', url],
        ['weights', 'get', url],
        ['eval', 'pp_liteseg', '--weights', url],
        ['train', 'x', '--resume', url],
    )
    for words in commands:
        with suppress(SystemExit):
            assert run_here(*words) in (1, 2)
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err
    assert captured.err.count('reach logs') == 6


def test_without_obstore_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, 'find_spec', lambda name: None)
    monkeypatch.delenv(buckets.FETCHER, raising=False)
    with pytest.raises(StoreError, match=r'pip install .phalanx-vision\[buckets\]'):
        (ROOT / 'a.txt').read_bytes()


def test_processes_of_a_node_fetch_each_object_once(store: Store) -> None:
    """Forked ones, as loader workers are, that all want the same objects at the same time, some of which are on their way."""
    names = [f'{number}.txt' for number in range(20)]
    put(store, *names)
    store.pause_s = 0.02
    fetch_ahead(str(ROOT / name) for name in names[:10])

    def read() -> None:
        assert [(ROOT / name).read_text() for name in names] == names

    workers = [multiprocessing.get_context('fork').Process(target=read) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert [store.gets(f'/tests/set/{name}') for name in names] == [1] * 20
    assert fetched()['asked'] == 60


def test_the_next_start_takes_unchanged_objects_from_the_cache(store: Store) -> None:
    put(store, 'a.txt', 'b.txt')
    for _ in range(2):
        ROOT.names()
        assert (ROOT / 'a.txt').read_text() == 'a.txt'
        buckets._connection.cache_clear()
        os.environ.pop(buckets.FETCHER)
    assert store.gets('/tests/set/a.txt') == 1
    store.objects['/tests/set/a.txt'] = b'changed'
    assert (ROOT / 'a.txt').read_text() == 'changed'


def test_the_version_of_an_object_is_the_same_with_and_without_quotation_marks(store: Store) -> None:
    put(store, 'a.txt')
    store.mark = ''
    assert ROOT.names() == ['a.txt']
    assert (ROOT / 'a.txt').read_text() == 'a.txt'


def test_an_object_that_changes_during_a_run_is_an_error(store: Store) -> None:
    put(store, 'a.txt')
    ROOT.names()
    store.objects['/tests/set/a.txt'] = b'changed'
    with pytest.raises(StoreError, match='has changed since the run began'):
        (ROOT / 'a.txt').read_bytes()


def test_failing_requests_are_repeated_and_counted(store: Store) -> None:
    put(store, 'a.txt')
    store.failures = 4
    assert (ROOT / 'a.txt').read_text() == 'a.txt'
    assert fetched()['retries'] == 4


def test_a_full_cache_loses_what_was_not_used_for_longest(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / 'small'
    BucketOptions(gib=100_000 / 2**30, folder=folder).announce()
    store.objects |= {f'/tests/set/{number}': bytes(30_000) for number in range(4)}
    for number in (0, 1, 0, 2, 0, 3):  # three fit: the fourth displaces 1
        (ROOT / str(number)).read_bytes()
        for place, file in enumerate(sorted(folder.glob('*/*'), key=lambda file: file.stat().st_mtime)):
            os.utime(file, (place, place))  # in this order, whatever the resolution of the clock
    assert sum(file.stat().st_size for file in folder.glob('*/*')) <= 90_000
    (ROOT / '0').read_bytes()
    assert store.gets('/tests/set/0') == 1
    (ROOT / '1').read_bytes()
    assert store.gets('/tests/set/1') == 2


def test_a_missing_object_is_named_with_its_line(store: Store) -> None:
    put(store, 'a.txt')
    store.objects['/tests/set/list.txt'] = b'a.txt 0\nc/b.txt 1\nb.txt 2\n'
    with pytest.raises(FileNotFoundError, match=r'2 files are missing in s3://tests/set: b.txt, c/d.txt'):
        check_present(ROOT, ['a.txt', 'b.txt', 'c/d.txt'])
    with pytest.raises(FileNotFoundError, match=r'1 file is missing in s3://tests/set: b.txt \(s3://tests/set/list.txt:3\)'):
        check_present(ROOT, ['a.txt', 'b.txt'], listings=[ROOT / 'list.txt'])
    with pytest.raises(SampleError, match=r's3://tests/set/b.png: cannot be read: there is no such object'):
        read_image(ROOT / 'b.png')


def test_a_store_that_refuses_is_not_a_bad_sample(store: Store) -> None:
    """`train.bad_samples` would skip samples that are there, and train on others than the disk's."""
    del os.environ['AWS_ENDPOINT_URL']
    with serve(store) as address, pytest.raises(StoreError, match='no lists of files'):
        parse_path(f'{address}/tests/set').names()  # type: ignore[attr-defined]


def test_files_of_a_web_server_are_read_without_lists(store: Store) -> None:
    put(store, 'list.txt')
    root = parse_path(f'{os.environ["AWS_ENDPOINT_URL"]}/tests/set')
    assert (root / 'list.txt').read_text() == 'list.txt'
    assert not (root / 'none.txt').is_file()
    check_present(root, ['none.txt'])  # found out when it is read: a million requests would take too long


def test_an_upload_appears_as_a_whole(store: Store, tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('content')
    assert isinstance(ROOT, StorePath)
    upload(tmp_path / 'file', ROOT / 'new.txt')
    assert (ROOT / 'new.txt').read_text() == 'content'
    with pytest.raises(StoreError, match='only read'):
        (ROOT / 'new.txt').write_text('other')


def test_training_from_a_bucket_equals_training_from_a_disk(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same losses, each object sent once, no secret in the run folder, and rates in log, summary and page."""
    folder = tmp_path / 'set'
    write_pairs(folder)
    store.put(folder, 'tests/set')
    monkeypatch.chdir(tmp_path)
    words = [word for word in TINY if not word.startswith('data.')]
    words += ['train.steps=4', 'train.workers=1', 'report.every=2', 'evaluate.every=4']

    def train(name: str, root: str) -> list[float]:
        data = f'data={{name: file_list, root: "{root}", train: train.txt, eval: val.txt, classes: classes.txt}}'
        assert run_here('train', *words, data, '--save_dir', name) == 0
        return losses(tmp_path / name)

    assert train('remote', 's3://tests/set') == train('local', str(folder))
    size = sum(file.stat().st_size for file in folder.rglob('*') if file.is_file())
    assert 0 < store.sent <= size
    summary = json.loads((tmp_path / 'remote' / 'summary.json').read_text())
    assert summary['buckets']['bytes'] == store.sent
    assert 'bucket_mb_per_s' in (tmp_path / 'remote' / 'metrics.jsonl').read_text()
    assert not [file for file in (tmp_path / 'remote').rglob('*') if file.is_file() and SECRET.encode() in file.read_bytes()]
    shutil.rmtree(tmp_path / 'remote')
    assert train('again', 's3://tests/set') == losses(tmp_path / 'local')
    assert store.sent <= size
