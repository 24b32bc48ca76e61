"""Checkpoints: whole or not there; damage is noticed and named."""

import errno
import json
from pathlib import Path

import pytest
import torch

from phalanx.checkpoint import CheckpointError, Checkpoints, load, weights_at


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


@pytest.mark.parametrize('name', ['model.safetensors', 'state.pt', 'manifest.json'])
@pytest.mark.parametrize('damage', ['flipped', 'cut short', 'missing', 'empty'])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path: Path, name: str, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1)
    file = save(checkpoints, 2) / name
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
    assert [path.name for path in (tmp_path / 'checkpoints').iterdir()] == ['step_0000001']
    assert checkpoints.newest()[1] == []


def test_what_a_killed_process_left_behind_is_no_checkpoint_and_goes(tmp_path: Path) -> None:
    (tmp_path / 'checkpoints' / '.step_0000009.123').mkdir(parents=True)
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.all() == []
    save(checkpoints, 1)
    assert [path.name for path in (tmp_path / 'checkpoints').iterdir()] == ['step_0000001']


def test_a_format_of_the_future_is_refused_by_number(tmp_path: Path) -> None:
    path = save(Checkpoints(tmp_path, keep=1), 1)
    manifest = json.loads((path / 'manifest.json').read_text())
    (path / 'manifest.json').write_text(json.dumps({**manifest, 'format': 99}))
    with pytest.raises(CheckpointError, match='format 99'):
        load(path)


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
    assert weights_at(path / 'model.safetensors')['w'][0, 0] == 2
    with pytest.raises(CheckpointError, match='holds no weights'):
        weights_at(tmp_path / 'checkpoints')
