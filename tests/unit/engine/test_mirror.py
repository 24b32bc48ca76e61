"""A run whose folder is in a bucket is stored there as a whole, and goes on from it on another machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from phalanx.engine.job import mirror_of
from phalanx.engine.mirror import Mirror
from phalanx.system.errors import RequestError, RunError
from phalanx.system.paths import parse_path
from running import TINY, losses, run_here
from stores import Store

URL = 's3://tests/runs/one'
WORDS = (*TINY, 'train.steps=8', 'checkpoint.every=2', 'checkpoint.keep=1', 'evaluate.enabled=false')


def train(*more: str, folder: str = URL) -> int:
    return run_here('train', *WORDS, *more, '--save_dir', folder)


def mirror() -> Mirror:
    found = mirror_of(parse_path(URL))
    assert found is not None
    return found


def add_checkpoint(folder: Path, step: int, of: str = 'here') -> None:
    """The only checkpoint of a run folder, with files that name it."""
    shutil.rmtree(folder / 'checkpoints', ignore_errors=True)
    place = folder / f'checkpoints/step_{step:07d}'
    place.mkdir(parents=True)
    for name in ('manifest.json', 'model.safetensors'):
        (place / name).write_text(f'{name} of step {step} {of}')
    (folder / 'latest').write_text(f'checkpoints/{place.name}\n')


def begin(step: int) -> Mirror:
    """A run on this machine that has published its first checkpoint."""
    begun = mirror()
    add_checkpoint(begun.folder, step)
    begun.publish()
    return begun


def as_on_another_machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Mirror:
    with monkeypatch.context() as patch:
        patch.setenv('XDG_CACHE_HOME', str(folder))
        found = mirror()
        found.restore()
        return found


def test_a_run_goes_on_from_its_bucket_on_a_fresh_machine(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its losses are those of one uninterrupted run on a disk, and the bucket has one checkpoint besides the files."""
    monkeypatch.chdir(tmp_path)
    assert train('train.until=4') == 0
    said = ''.join(capsys.readouterr())
    assert f'{URL}/report.html' in said.replace('\n', '') and f'phalanx predict {URL} IMAGES' in said
    assert f'saved step_0000004 of {URL} in' in said and said.count(str(mirror().folder)) == 1  # in the banner
    assert 'cached' not in said  # no data are read from there
    shutil.rmtree(mirror().folder)  # as on another machine
    assert train() == 0
    assert f'resumed at step 4 from step_0000004 of {URL}' in capsys.readouterr().out
    assert train(folder='local') == 0
    assert losses(mirror().folder) == losses(tmp_path / 'local')
    stored = {name.removeprefix('/tests/runs/one/') for name in store.objects}
    assert {'config.yml', 'metrics.jsonl', 'summary.json', 'report.html', 'latest'} <= stored
    (checkpoint,) = {name.rpartition('/')[0] for name in stored if name.startswith('checkpoints/')}
    assert store.objects['/tests/runs/one/latest'].decode().strip() == checkpoint
    assert checkpoint.startswith('checkpoints/step_0000008-')
    assert store.objects['/tests/runs/one/metrics.jsonl'] == (mirror().folder / 'metrics.jsonl').read_bytes()
    # A third machine evaluates it; to start over would lose what is there, and so would another recipe.
    shutil.rmtree(mirror().folder)
    assert run_here('eval', URL) == 0
    assert f'weights: {URL}, step 8' in capsys.readouterr().err
    assert run_here('report', URL) == run_here('runs', 's3://tests/runs') == 0
    said = capsys.readouterr().out
    assert str(mirror().folder / 'report.html') in said and f'{URL}   pp_liteseg_digits' in said
    assert train('--fresh') == 2
    assert train('train.global_batch_size=3') == 2
    said = capsys.readouterr().err
    assert f'{URL} has a run, which cannot be set aside there' in said
    assert f'{URL} holds a run of another recipe' in said


def test_the_pointer_changes_after_everything_that_it_needs(store: Store) -> None:
    """A machine that dies while it uploads leaves the former checkpoint in its place."""
    run = begin(2)
    add_checkpoint(run.folder, 4)
    run.publish()
    puts = [path.removeprefix('/tests/runs/one/') for method, path in store.requests if method == 'PUT']
    assert [name.rpartition('/')[2] for name in puts] == ['model.safetensors', 'manifest.json', 'latest'] * 2
    removed = [path for method, path in store.requests if method == 'DELETE']
    assert {path.split('/')[5].partition('-')[0] for path in removed} == {'step_0000002'}


@pytest.mark.parametrize('left', ['model.safetensors', 'manifest.json'])
def test_an_upload_that_was_cut_off_is_not_read(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left: str
) -> None:
    """Files of a checkpoint that no pointer names, whichever came last, and one that is published again as a whole."""
    run = begin(2)
    add_checkpoint(run.folder, 4)
    before = dict(store.objects)
    run.publish()
    new = {name: data for name, data in store.objects.items() if 'step_0000004' in name and (left in name or 'model' in name)}
    store.objects = before | new
    other = as_on_another_machine(monkeypatch, tmp_path / 'other')
    assert [path.name for path in (other.folder / 'checkpoints').iterdir()] == ['step_0000002']
    add_checkpoint(other.folder, 4)
    other.publish()
    assert {name.split('/')[5].partition('-')[0] for name in store.objects if 'checkpoints' in name} == {'step_0000004'}
    assert sum('step_0000004' in name for name in store.objects) == 2


def test_a_machine_that_comes_back_takes_what_others_have_done_since(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its own checkpoint, which it could not upload, is renamed, not lost."""
    run = begin(2)
    add_checkpoint(run.folder, 4, of='this machine')
    other = as_on_another_machine(monkeypatch, tmp_path / 'other')
    add_checkpoint(other.folder, 4, of='another machine')
    other.publish()
    back = mirror()
    back.restore()
    assert (back.folder / 'latest').read_text() == 'checkpoints/step_0000004\n'
    assert 'another machine' in (back.folder / 'checkpoints/step_0000004/model.safetensors').read_text()
    (aside,) = back.folder.parent.glob('one.old-1/checkpoints/*/model.safetensors')
    assert 'this machine' in aside.read_text()


def test_what_this_machine_could_not_upload_is_continued_there(store: Store) -> None:
    run = begin(2)
    add_checkpoint(run.folder, 4)
    mirror().restore()
    assert (run.folder / 'latest').read_text() == 'checkpoints/step_0000004\n'


def test_two_machines_do_not_overwrite_each_other(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = begin(2)
    other = as_on_another_machine(monkeypatch, tmp_path / 'other')
    for one, step in ((other, 4), (run, 6)):
        add_checkpoint(one.folder, step)
    other.publish()
    with pytest.raises(RunError, match=r'another run has written checkpoints/step_0000004-\w+ there'):
        run.publish()


def test_a_web_server_cannot_hold_a_run_folder() -> None:
    with pytest.raises(RequestError, match='s3://, gs:// or az://'):
        mirror_of(parse_path('https://example.org/run'))
