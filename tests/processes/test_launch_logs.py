"""The published launch lines: what they leave in `workerlog.N`, and on the screen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from running import TINY, Command

TOOLS = Path(__file__).parents[2] / 'tools'


LAUNCH = ('launch', '--log_dir=./log/', '--nproc_per_node', '2')


def test_each_line_of_rank_0_appears_once_on_the_terminal_and_once_in_its_log(phalanx: Command, tmp_path: Path) -> None:
    shutil.copytree(TOOLS, tmp_path / 'tools')
    (tmp_path / 'log').mkdir()
    (tmp_path / 'log' / 'workerlog.0').write_text('an error of an earlier run\n' * 1000)
    done = phalanx(*LAUNCH, 'tools/train.py', '-c', *TINY, 'train.steps=3', '--save_dir', 'run')
    assert done.returncode == 0, done.stderr
    log = (tmp_path / 'log' / 'workerlog.0').read_text()
    assert done.stdout == log
    assert 'step' in (tmp_path / 'log' / 'workerlog.1').read_text()
    assert json.loads((tmp_path / 'run' / 'summary.json').read_text())['world_size'] == 2
    for step in (1, 2, 3):
        assert log.count(f'step {step}/3  epoch') == 1
    assert log.count('peak memory') == 1
    assert '\0' not in log


def test_an_error_of_the_user_is_one_line_with_its_cause_and_without_a_traceback(phalanx: Command, tmp_path: Path) -> None:
    shutil.copytree(TOOLS, tmp_path / 'tools')
    done = phalanx(*LAUNCH, 'tools/train.py', '-c', *TINY, '--resume', 'nowhere', '--save_dir', 'run')
    assert done.returncode == 1
    assert 'Traceback' not in done.stdout + done.stderr
    (last,) = done.stderr.splitlines()
    assert last.startswith('the run failed after ')
    assert 'nowhere' in last
