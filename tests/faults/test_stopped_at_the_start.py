"""A launch that is asked to stop before its ranks run ends as one that trains does: nothing is left behind."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from faults.started import Started
from running import TINY


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_launcher_that_is_stopped_before_its_ranks_run_clears_up(number: int, tmp_path: Path) -> None:
    temporary = tmp_path / 'tmp'
    temporary.mkdir()
    run = Started(tmp_path, 'train', *TINY, '--nproc_per_node', '2', '--save_dir', 'run', TMPDIR=str(temporary))
    assert run.until(lambda: any(temporary.glob('phalanx-launch-*')), 600)
    assert run.process.poll() is None, run.said()
    run.process.send_signal(number)
    assert run.end(600) == 128 + number
    assert not list(temporary.glob('phalanx-launch-*'))
    assert not run.descendants()


@pytest.mark.slow
def test_a_rank_of_another_launcher_that_waits_for_the_others_is_stopped_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(('localhost', 0))
        port = int(free.getsockname()[1])
    ranks = {'RANK': '0', 'WORLD_SIZE': '2', 'MASTER_ADDR': 'localhost', 'MASTER_PORT': str(port)}
    run = Started(tmp_path, 'train', *TINY, '--save_dir', 'run', **ranks)

    def listens() -> bool:
        return socket.socket().connect_ex(('localhost', port)) == 0

    assert run.until(listens, 900)
    run.process.send_signal(signal.SIGINT)
    assert run.end(900) == 130
    assert run.last_words() == 'phalanx: stopped by SIGINT'
    assert 'Traceback' not in run.said()
