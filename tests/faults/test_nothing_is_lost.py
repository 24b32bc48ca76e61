"""Nothing that a launch or a run did not make is ever removed, and a kill at any moment loses no checkpoint."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
import torch

from faults.started import BOUND, Started, left
from phalanx.engine.folder import lock_folder
from phalanx.launch.launcher import MARK, PREFIX, scratch_folder
from phalanx.system.disk import write_atomically
from phalanx.weights.checkpoint import Checkpoints, weights_at
from running import TINY, records

LONG = (*TINY, 'train.steps=2000', 'evaluate.enabled=false', 'report.pictures=0', '--save_dir', 'run')


def test_a_launch_removes_no_folder_but_those_that_launchers_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run folder in the temporary folder, with a lock, with any name, in use or not, stays as it is."""
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    monkeypatch.setitem(os.environ, 'TMPDIR', str(tmp_path))
    names = ('phalanx-demo', f'{PREFIX}of-mine', 'phalanx-launch', 'run')
    for name in names:
        (tmp_path / name / 'checkpoints').mkdir(parents=True)
        (tmp_path / name / 'lock').write_text('process 1')
    (tmp_path / f'{PREFIX}dead').mkdir()
    (tmp_path / f'{PREFIX}dead' / MARK).write_text('')
    with lock_folder(tmp_path / 'phalanx-demo'), scratch_folder() as first, scratch_folder() as second:
        assert first.is_dir() and second.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert all((tmp_path / name / 'checkpoints').is_dir() for name in names)


MUTATIONS = ('open', 'os.rename', 'os.remove', 'os.mkdir', 'os.rmdir', 'os.symlink', 'os.link', 'os.truncate', 'shutil.rmtree')


def killed_at(moment: int, folder: Path) -> bool:
    """Saves step 2 again in a child that ends abruptly before its `moment`-th change of the disk; whether it came that far."""
    child = os.fork()
    if child == 0:
        seen = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            if event in MUTATIONS and any(str(folder) in str(argument) for argument in arguments):
                seen += 1
                if seen > moment:
                    os._exit(9)

        sys.addaudithook(watch)
        save(Checkpoints(folder, keep=1), 2, 2.5)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def save(checkpoints: Checkpoints, step: int, value: float) -> None:
    state = {'best_step': 1, 'metrics': {}}
    checkpoints.save(step, {'weight': torch.full((3,), value)}, None, state, best=False)


def test_a_kill_between_any_two_changes_of_the_disk_leaves_the_step_that_is_saved_again(tmp_path: Path) -> None:
    """With one checkpoint kept: it is the old one or the new one, at once for who reads, and for the next start."""
    moment, came = 0, True
    while came:
        folder = tmp_path / str(moment)
        folder.mkdir()
        checkpoints = Checkpoints(folder, keep=1)
        save(checkpoints, 1, 1.0)
        save(checkpoints, 2, 2.0)
        came = killed_at(moment, folder)
        assert weights_at(folder)['weight'][0] in (2.0, 2.5), moment
        checkpoints.remove_leftovers()
        newest, damaged = checkpoints.newest()
        assert newest is not None and newest.step == 2 and not damaged, moment
        assert not list(folder.rglob('.*')), moment
        moment += 1
    assert moment > 10  # it was killed in between, and often


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / 'config.yml'
    write_atomically(file, b'before')
    for moment in range(6):
        child = os.fork()
        if child == 0:
            seen = 0

            def watch(event: str, arguments: tuple[object, ...], moment: int = moment) -> None:
                nonlocal seen
                seen += event in MUTATIONS and str(tmp_path) in str(arguments)
                if seen > moment:
                    os._exit(9)

            sys.addaudithook(watch)
            write_atomically(file, b'after', durable=True)
            os._exit(0)
        os.waitpid(child, 0)
        assert file.read_bytes() in (b'before', b'after')
    assert file.read_bytes() == b'after'


TWO = ('--nproc_per_node', '2')


@pytest.mark.parametrize(
    ('ranks', 'number'),
    [
        pytest.param((), signal.SIGHUP, id='one process, SIGHUP'),
        pytest.param(TWO, signal.SIGUSR1, id='two ranks, SIGUSR1', marks=pytest.mark.long),
        pytest.param((), signal.SIGUSR2, id='one process, SIGUSR2', marks=pytest.mark.long),
        pytest.param(TWO, signal.SIGHUP, id='two ranks, SIGHUP', marks=pytest.mark.long),
    ],
)
def test_signals_of_schedulers_and_terminals_save_and_end_the_run(
    tmp_path: Path, ranks: tuple[str, ...], number: signal.Signals
) -> None:
    started = Started(tmp_path, 'train', *LONG, *ranks)
    started.until(lambda: started.steps() >= 2, BOUND)
    started.process.send_signal(number)
    assert started.end(BOUND) == 128 + number
    assert list((tmp_path / 'run' / 'checkpoints').glob('step_*/manifest.json'))
    assert left(tmp_path) == []


def test_a_stop_of_the_whole_group_saves_while_loader_workers_are_in_it(tmp_path: Path) -> None:
    """The signal of `timeout`, systemd and container runtimes."""
    started = Started(tmp_path, 'train', *LONG, 'train.workers=2')
    started.until(lambda: started.steps() >= 2, BOUND)
    for process in (*started.workers(), started.process):
        process.send_signal(signal.SIGTERM)
    assert started.end(BOUND) == 143
    assert list((tmp_path / 'run' / 'checkpoints').glob('step_*/manifest.json'))
    assert left(tmp_path) == []


def test_a_run_folder_that_disappears_stops_the_run_and_its_last_checkpoint_is_saved_next_to_it(tmp_path: Path) -> None:
    started = Started(tmp_path, 'train', *LONG)
    started.until(lambda: started.steps() >= 2, BOUND)
    (tmp_path / 'run').rename(tmp_path / 'moved')
    assert started.end(BOUND) == 1
    assert 'was removed or moved while the run wrote to it' in started.last_words()
    assert 'run.rescued: to continue, repeat the command with --resume' in started.last_words()
    assert Checkpoints(tmp_path / 'run.rescued', keep=1).newest()[0] is not None
    assert records(tmp_path / 'moved', 'train')  # and what it had written is still there


@pytest.mark.long
def test_a_paused_launcher_pauses_its_ranks_and_both_go_on_together(tmp_path: Path) -> None:
    started = Started(tmp_path, 'train', *LONG, '--nproc_per_node', '2')
    started.until(lambda: started.steps() >= 2, BOUND)
    processes = [started.process, *started.ranks()]
    started.process.send_signal(signal.SIGTSTP)
    assert started.until(lambda: {one.status() for one in processes} == {psutil.STATUS_STOPPED}, BOUND)
    before = started.steps()
    started.process.send_signal(signal.SIGCONT)
    assert started.until(lambda: started.steps() > before, BOUND)
    started.process.send_signal(signal.SIGTERM)
    assert started.end(BOUND) == 143
