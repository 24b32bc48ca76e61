"""Runs whose standard output or error breaks: they go on or save, and their folder has the complete log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from faults.started import BOUND, Started, left
from phalanx.weights.checkpoint import load
from running import TINY, clean_environment, records, run_here

FEW = (*TINY, 'train.steps=3', 'evaluate.enabled=false', 'report.pictures=0', '--save_dir', 'run')


def shell(line: str) -> tuple[str, ...]:
    """Start a command as `"$@"` in a line of bash, which ends with the status of the command."""
    return ('bash', '-c', f'trap : INT; {line}; exit ${{PIPESTATUS[0]}}', 'bash')


# As `phalanx ... 2>&1 | tee log` in a shell: of one process group.
TEE = """
import subprocess
tee = subprocess.Popen(['tee', 'log'], stdin=subprocess.PIPE)
for number in (1, 2):
    os.dup2(tee.stdin.fileno(), number)
"""


def test_ctrl_c_with_tee_saves_the_step_reached_and_logs_the_end(tmp_path: Path) -> None:
    """A terminal interrupts all processes of a line; tee is gone before the ranks say what they do."""
    words = (*TINY, 'train.steps=2000', 'evaluate.enabled=false', '--save_dir', 'run', '--nproc_per_node', '2')
    started = Started(tmp_path, 'train', *words, before=TEE)
    started.until(lambda: started.steps() >= 2, BOUND)
    os.killpg(started.process.pid, signal.SIGINT)
    assert started.end(BOUND) == 130, started.output()
    (saved,) = (tmp_path / 'run' / 'checkpoints').iterdir()
    reached = max(line['step'] for line in records(tmp_path / 'run'))
    assert load(saved).step == reached
    log = (tmp_path / 'run' / 'log' / 'workerlog.0').read_text().splitlines()
    assert log[-1].endswith(f'stopped after step {reached} of 2000; the same command continues from there')
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ('line', 'options'),
    [pytest.param('"$@" 2>&1 | head -n 1', ('--nproc_per_node', '2'), marks=pytest.mark.long), ('"$@" >&- 2>/dev/full', ())],
    ids=['two ranks, a reader that ends', 'one rank, closed and full'],
)
def test_a_run_without_a_reader_finishes(line: str, options: tuple[str, ...], tmp_path: Path) -> None:
    started = Started(tmp_path, 'train', *FEW, *options, within=shell(line))
    assert started.end(BOUND) == 0, started.output()
    assert json.loads((tmp_path / 'run' / 'summary.json').read_text())['steps'] == 3
    assert [line['step'] for line in records(tmp_path / 'run')] == [1, 2, 3]
    if options:
        assert 'step 3/3' in (tmp_path / 'run' / 'log' / 'workerlog.0').read_text()


@pytest.fixture(scope='module')
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, `run`, and two images, `photos`."""
    folder = tmp_path_factory.mktemp('finished')
    with contextlib.chdir(folder):
        assert run_here('train', *FEW) == 0
    (folder / 'photos').mkdir()
    for name in ('a.png', 'b.png'):
        cv2.imwrite(str(folder / 'photos' / name), np.zeros((64, 96, 3), np.uint8))
    return folder


@pytest.mark.parametrize(
    ('words', 'made'),
    [
        (('eval', 'run', '--page', 'out/eval.html'), 'out/eval.html'),
        (('config', 'run'), None),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                (('predict', 'run', 'photos', '--out', 'out/results'), 'out/results/b.png'),
                (('export', 'run', '--out', 'out/model.onnx'), 'out/model.onnx'),
                (('report', 'run'), 'run/report.html'),
                (('data', 'check', 'run', '--page', 'out/data.html', '--workers', '0'), 'out/data.html'),
                (('bench', 'data', 'run', '--samples', '6'), None),
            )
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else '',
)
def test_a_command_without_a_reader_finishes_its_work(finished: Path, words: tuple[str, ...], made: str | None) -> None:
    """`true` has ended by the time that the command prints, and standard error is a full disk."""
    (finished / 'out').mkdir(exist_ok=True)
    line = shell('"$@" 2>/dev/full | true')
    ended = subprocess.run([*line, sys.executable, '-m', 'phalanx', *words], cwd=finished, env=clean_environment(), check=False)
    assert ended.returncode == 0
    assert made is None or (finished / made).is_file()
