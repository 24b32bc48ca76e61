"""Runs whose standard output or error breaks: they go on or save, and their folder has all that was said."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from faults.started import BOUND, Started, left
from phalanx.weights.checkpoint import load
from running import TINY, records

FEW = (*TINY, 'train.steps=3', 'evaluate.enabled=false', 'report.pictures=0', '--save_dir', 'run')


def shell(line: str) -> tuple[str, ...]:
    """Start a command as `"$@"` in a line of bash, which ends with the status of the command."""
    return ('bash', '-c', f'trap : INT; {line}; exit ${{PIPESTATUS[0]}}', 'bash')


@pytest.mark.slow
def test_ctrl_c_with_tee_saves_the_step_reached_and_logs_the_end(tmp_path: Path) -> None:
    """A terminal interrupts all processes of a line; tee is gone before the ranks say what they do."""
    words = (*TINY, 'train.steps=2000', 'evaluate.enabled=false', '--save_dir', 'run', '--nproc_per_node', '2')
    started = Started(tmp_path, 'train', *words, within=shell('"$@" 2>&1 | tee log'))
    started.until(lambda: started.steps() >= 2, BOUND)
    os.killpg(started.process.pid, signal.SIGINT)
    assert started.end(BOUND) == 130, started.said()
    (saved,) = (tmp_path / 'run' / 'checkpoints').iterdir()
    reached = max(line['step'] for line in records(tmp_path / 'run'))
    assert load(saved).step == reached
    log = (tmp_path / 'run' / 'log' / 'workerlog.0').read_text().splitlines()
    assert log[-1].endswith(f'stopped after step {reached} of 2000; the same command continues from there')
    assert left(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ('line', 'options'),
    [('"$@" 2>&1 | head -n 1', ('--nproc_per_node', '2')), ('"$@" >&- 2>/dev/full', ())],
    ids=['two ranks, a reader that ends', 'one rank, closed and full'],
)
def test_a_run_without_a_reader_comes_to_its_end(line: str, options: tuple[str, ...], tmp_path: Path) -> None:
    started = Started(tmp_path, 'train', *FEW, *options, within=shell(line))
    assert started.end(BOUND) == 0, started.said()
    assert json.loads((tmp_path / 'run' / 'summary.json').read_text())['steps'] == 3
    assert [line['step'] for line in records(tmp_path / 'run')] == [1, 2, 3]
    if options:
        assert 'step 3/3' in (tmp_path / 'run' / 'log' / 'workerlog.0').read_text()
