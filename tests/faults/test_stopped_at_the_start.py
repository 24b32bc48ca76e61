"""A launch that is asked to stop before its ranks run ends as one that trains does: nothing is left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from faults.started import Started, left
from running import TINY, clean_environment, free_port


@pytest.mark.parametrize(
    'number', [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGTERM, signal.SIGUSR1))]
)
def test_a_launcher_that_is_stopped_before_its_ranks_run_clears_up(number: int, tmp_path: Path) -> None:
    temporary = tmp_path / 'tmp'
    temporary.mkdir()
    run = Started(tmp_path, 'train', *TINY, '--nproc_per_node', '2', '--save_dir', 'run', TMPDIR=str(temporary))
    assert run.until(lambda: any(temporary.glob('phalanx-launch-*')), 600)
    assert run.process.poll() is None, run.output()
    run.process.send_signal(number)
    assert run.end(600) == 128 + number
    assert not list(temporary.glob('phalanx-launch-*'))
    assert not run.descendants()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which('unshare') is None, reason='needs root and unshare')
def test_the_first_process_of_a_container_is_stopped_before_it_trains(tmp_path: Path) -> None:
    """The kernel delivers no signal without a handler to a process with the number 1."""
    (tmp_path / 'stop.py').write_text('import os, signal\nassert os.getpid() == 1\nos.kill(1, signal.SIGTERM)\n')
    inside = ('unshare', '--pid', '--fork', '--mount-proc', sys.executable, '-m', 'phalanx')
    done = subprocess.run(
        [*inside, 'train', *TINY[:1], '--plugin', 'stop.py', *TINY[1:], 'train.steps=1', 'evaluate.enabled=false'],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if 'unshare failed' in done.stderr:
        pytest.skip('there can be no process namespace here')
    assert (done.returncode, done.stderr) == (143, 'phalanx: stopped by SIGTERM\n')


def test_a_rank_of_another_launcher_that_waits_for_the_others_is_stopped_in_one_line(tmp_path: Path) -> None:
    port = free_port()
    ranks = {'RANK': '0', 'WORLD_SIZE': '2', 'MASTER_ADDR': 'localhost', 'MASTER_PORT': str(port)}
    run = Started(tmp_path, 'train', *TINY, '--save_dir', 'run', **ranks)

    def listens() -> bool:
        return socket.socket().connect_ex(('localhost', port)) == 0

    assert run.until(listens, 900)
    run.process.send_signal(signal.SIGINT)
    assert run.end(900) == 130
    assert run.last_words() == 'phalanx: stopped by SIGINT'
    assert 'Traceback' not in run.output()


@pytest.mark.parametrize(('ranks', 'step'), [(1, 0), pytest.param(2, 0, marks=pytest.mark.long), (1, 3)])
def test_a_stop_while_a_batch_is_read_does_not_wait_for_it(ranks: int, step: int, tmp_path: Path) -> None:
    """Before the first step there is nothing to save; later one rank saves the step reached, since no other needs the batch."""
    waits = (
        'import threading\n'
        'from pathlib import Path\n'
        'from phalanx.families.segmentation.task import Samples\n'
        'right = Samples.__getitem__\n'
        'def read(self, draw):\n'
        f'    if draw.step == {step}:\n'
        '        Path("reading").touch()\n'
        '        threading.Event().wait()\n'
        '    return right(self, draw)\n'
        'Samples.__getitem__ = read\n'
    )
    words = (*TINY, 'train.steps=9', 'train.workers=1', 'evaluate.enabled=false', '--save_dir', 'run')
    run = Started(tmp_path, 'train', *words, '--nproc_per_node', str(ranks), before=waits)
    assert run.until(lambda: (tmp_path / 'reading').exists() and run.steps() == step, 900), run.output()
    run.process.send_signal(signal.SIGTERM)
    assert run.end(900) == 143, run.output()
    saved = sorted(path.name for path in (tmp_path / 'run').glob('checkpoints/step_*'))
    assert saved == ([f'step_{step:07}'] if step else [])
    # One rank may read while the other is not that far yet.
    where = f'stopped after step {step} of 9' if step else 'stopped (before the first step|by SIGTERM)'
    assert re.search(where, ' '.join(run.output().split()))
    assert left(tmp_path) == []
