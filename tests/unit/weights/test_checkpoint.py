"""Checkpoints are complete or absent; damage is detected and named."""

import contextlib
import errno
import json
import os
from pathlib import Path

import pytest
import torch

from phalanx.engine.worker import find_checkpoint
from phalanx.system.errors import CheckpointError
from phalanx.weights.checkpoint import Checkpoints, FormatError, describe_checkpoint, load, weights_at
from phalanx.weights.finding import find
from phalanx.weights.reading import read_weights


def save(checkpoints: Checkpoints, step: int, best: bool = False, averaged: bool = False) -> Path:
    model = {'w': torch.full((3, 2), float(step)), 'b': torch.zeros(1)}
    return checkpoints.save(
        step, model, {'w': model['w'] * 2, 'b': model['b']} if averaged else None, {'step': step, 'best': 0.5}, best
    )


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    loaded = load(save(Checkpoints(tmp_path, keep=2), 7, averaged=True))
    assert loaded.averaged is not None
    assert (loaded.step, loaded.state, loaded.model['w'][0, 0].item(), loaded.averaged['w'][0, 0].item()) == (
        7,
        {'step': 7, 'best': 0.5},
        7.0,
        14.0,
    )


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(1, 6):
        save(checkpoints, step, best=step == 2)
    assert [path.name for path in checkpoints.all()] == ['step_0000002', 'step_0000004', 'step_0000005']
    assert (tmp_path / 'best').resolve().name == 'step_0000002'
    assert (tmp_path / 'latest').resolve().name == 'step_0000005'


def without_links(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """Make the file system one without links, like SMB, exFAT and some object mounts are."""

    def symlink(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, 'symlink', symlink)


@pytest.mark.parametrize('error', [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_disk_without_links_keeps_checkpoints_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    save(Checkpoints(tmp_path, keep=1), 1, best=True)  # of a time when the folder lay on another disk
    without_links(monkeypatch, error)
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in range(2, 5):
        save(checkpoints, step, best=step == 2)
    assert [path.name for path in checkpoints.all()] == ['step_0000002', 'step_0000004']
    assert (tmp_path / 'latest').read_text() == 'checkpoints/step_0000004\n'
    assert describe_checkpoint(tmp_path) == 'step 2 (best), as trained'
    assert [load_from(tmp_path / name) for name in ('', 'best', 'latest')] == [2, 2, 4]
    assert find_checkpoint(str(tmp_path / 'best'))[0].step == 2
    monkeypatch.undo()
    save(checkpoints, 5)
    assert (tmp_path / 'latest').is_symlink()


def load_from(place: Path) -> float:
    """The first weight of what `place` names, as `--weights` or `train.init_from` would take it."""
    value: float = read_weights(find(place)).weights['w'][0, 0].item()
    return value


@pytest.mark.parametrize('name', ['model.safetensors', 'averaged.safetensors', 'state.pt', 'manifest.json'])
@pytest.mark.parametrize('damage', ['flipped', 'cut short', 'missing', 'empty'])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path: Path, name: str, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1)
    file = save(checkpoints, 2, averaged=True) / name
    data = bytearray(file.read_bytes())
    if damage == 'missing':
        file.unlink()
    elif damage == 'flipped':
        place = data.index(b'"format"') if name == 'manifest.json' else len(data) // 2
        data[place + 1] ^= 0x40
        file.write_bytes(data)
    else:
        file.write_bytes(b'' if damage == 'empty' else data[: len(data) // 2])
    found, damaged = checkpoints.newest()
    assert found is not None
    assert found.step == 1
    assert len(damaged) == 1
    assert 'step_0000002' in damaged[0]


def test_without_a_whole_checkpoint_there_is_none(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.newest() == (None, [])
    (save(checkpoints, 1) / 'state.pt').unlink()
    assert checkpoints.newest()[0] is None


def test_a_disk_that_fills_up_leaves_the_old_checkpoint_and_no_trace_of_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(Path, 'write_bytes', full)
    with pytest.raises(OSError, match='No space left'):
        save(checkpoints, 2)
    with pytest.raises(OSError, match='No space left'):
        checkpoints.begin(3, {}, None, {}, False).wait()
    assert [path.name for path in (tmp_path / 'checkpoints').iterdir()] == ['step_0000001']
    assert checkpoints.newest()[1] == []


def test_what_a_killed_process_left_behind_is_no_checkpoint_and_goes(tmp_path: Path) -> None:
    (tmp_path / 'checkpoints' / '.new_step_0000009').mkdir(parents=True)
    (tmp_path / 'checkpoints' / '.new_step_0000009' / 'state.pt').touch()
    (tmp_path / '.latest.new').symlink_to('checkpoints/step_0000008')
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.all() == []
    checkpoints.remove_leftovers()
    assert [path.name for path in tmp_path.rglob('*')] == ['checkpoints']


def test_a_format_of_the_future_is_refused_by_number_and_not_passed_over(tmp_path: Path) -> None:
    """An older checkpoint beside it would quietly take the run back."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, 1)
    path = save(checkpoints, 2)
    manifest = json.loads((path / 'manifest.json').read_text())
    (path / 'manifest.json').write_text(json.dumps({**manifest, 'format': 99}))
    with pytest.raises(CheckpointError, match=r'step_0000002: has format 99, .* update Phalanx here'):
        load(path)
    with pytest.raises(FormatError):
        checkpoints.newest()


def test_the_first_format_which_had_no_seal_still_loads(tmp_path: Path) -> None:
    path = save(Checkpoints(tmp_path, keep=1), 3)
    manifest = json.loads((path / 'manifest.json').read_text())
    del manifest['seal']
    (path / 'manifest.json').write_text(json.dumps({**manifest, 'format': 1}))
    assert load(path).step == 3


def test_every_flipped_bit_of_a_manifest_is_noticed_or_harmless(tmp_path: Path) -> None:
    """Harmless: between the words of JSON, where a blank may become another one."""
    file = save(Checkpoints(tmp_path, keep=1), 7, averaged=True) / 'manifest.json'
    whole = file.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            with contextlib.suppress(CheckpointError):
                assert (load(file.parent).step, chr(whole[place])) in {(7, ' '), (7, '\n')}


def test_a_checkpoint_is_of_the_moment_it_was_begun(tmp_path: Path) -> None:
    """The training goes on while it is written: weights and optimizer state change under it."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    weight, moments = torch.ones(1000, 1000), {0: {'momentum_buffer': torch.ones(1000, 1000)}}
    saving = checkpoints.begin(1, {'w': weight}, None, {'optimizer': {'state': moments, 'groups': [{'lr': 0.1}]}}, True)
    weight.zero_()
    moments[0]['momentum_buffer'].zero_()
    path, seconds = saving.wait()
    assert seconds > 0
    assert path == tmp_path / 'checkpoints' / 'step_0000001'
    loaded = load(tmp_path / 'best')
    assert loaded.model['w'].eq(1).all()
    assert loaded.state['optimizer']['state'][0]['momentum_buffer'].eq(1).all()
    assert loaded.state['optimizer']['groups'] == [{'lr': 0.1}]


def test_the_same_step_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    (save(checkpoints, 2) / 'state.pt').unlink()
    save(checkpoints, 1)
    assert load(save(checkpoints, 2)).step == 2
    assert sorted(path.name for path in (tmp_path / 'checkpoints').iterdir()) == ['step_0000001', 'step_0000002']


def test_a_state_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """A checkpoint from elsewhere is data: pickles of anything but tensors and numbers do not load."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    path = checkpoints.save(1, {'w': torch.zeros(1)}, None, {'x': Path('/etc')}, False)
    with pytest.raises(CheckpointError, match='cannot be read'):
        load(path)


def test_weights_are_found_in_run_checkpoint_and_file(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1, best=True)
    path = save(checkpoints, 2, averaged=True)
    assert weights_at(tmp_path)['w'][0, 0] == 1  # the best
    assert weights_at(path)['w'][0, 0] == 4  # the averaged copy where there is one
    assert read_weights(find(path / 'model.safetensors')).weights['w'][0, 0] == 2
    with pytest.raises(CheckpointError, match='holds no weights'):
        weights_at(tmp_path / 'checkpoints')


@pytest.mark.parametrize(('raw', 'read', 'value'), [(False, 'averaged.safetensors', 4), (True, 'model.safetensors', 2)])
def test_weights_alone_are_read_and_checked(tmp_path: Path, raw: bool, read: str, value: int) -> None:
    """Not the state of the optimizer, which only a resumed run needs."""
    path = save(Checkpoints(tmp_path, keep=3), 2, averaged=True)
    for file in path.glob('*[!n]'):  # all but the manifest
        if file.name != read:
            file.write_bytes(b'damaged')
    assert weights_at(path, raw=raw)['w'][0, 0] == value
    (path / read).write_bytes(b'damaged')
    with pytest.raises(CheckpointError, match=f'{read}: has 7 bytes'):
        weights_at(path, raw=raw)


def test_averaged_weights_that_were_lost_are_no_weights_as_trained(tmp_path: Path) -> None:
    path = save(Checkpoints(tmp_path, keep=3), 2, averaged=True)
    (path / 'averaged.safetensors').unlink()
    assert describe_checkpoint(tmp_path) == 'step 2 (latest), EMA'
    with pytest.raises(CheckpointError, match=r'averaged\.safetensors: is missing'):
        weights_at(tmp_path)


def test_a_run_that_goes_back_to_a_checkpoint_keeps_later_ones_aside_where_no_start_finds_them(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=5)
    for step in (2, 4, 6):
        checkpoints.save(step, {'w': torch.full((1,), float(step))}, None, {'best_step': 2}, best=step in (2, 6))
    renamed = checkpoints.abandon(load(checkpoints.all()[1]))
    assert [path.name for path in renamed] == ['abandoned_step_0000006.1']
    found, damaged = checkpoints.newest()
    assert found is not None and (found.step, damaged) == (4, [])
    assert [(tmp_path / link).resolve().name for link in ('latest', 'best')] == ['step_0000004', 'step_0000002']
    assert load(renamed[0]).step == 6  # nothing is lost
    assert checkpoints.abandon(found) == []
