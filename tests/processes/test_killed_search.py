"""A search survives the kill of its process: real trials, each once, in one study."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from running import TINY, clean_environment

pytestmark = pytest.mark.long

SEARCH = ('--search', 'optimizer.lr=log:1e-3..1', 'train.global_batch_size=4,6', '--trials', '5', '--no_prune')
WORDS = ('tune', *TINY[:1], *SEARCH, *TINY[1:], 'train.steps=12', 'evaluate.every=6', 'checkpoint.every=3')
FIXED = tuple(word for word in WORDS if not word.startswith('train.global_batch_size=6'))


def begin(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, '-m', 'phalanx', *FIXED, '--save_dir', str(folder), *more]
    return subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_killed_search_goes_on_with_the_trial_that_was_cut_off(tmp_path: Path) -> None:
    folder = tmp_path / 'search'
    process = begin(folder)
    while not list(folder.glob('trial_001/checkpoints/*/manifest.json')):
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    output, _ = begin(folder, '--parallel', '2').communicate()
    assert 'best: trial' in output
    assert 'trial 1: optimizer.lr=' in output  # the one that was cut off
    assert 'trial 0: optimizer.lr=' not in output
    journal = [json.loads(line) for line in (folder / 'trial_001' / 'journal.jsonl').read_text().splitlines()]
    assert any(line.get('text', '').startswith('resumed at step') for line in journal)
    assert sorted(path.name for path in folder.glob('trial_*')) == [f'trial_{number:03}' for number in range(5)]
    assert all(json.loads((path / 'summary.json').read_text())['steps'] == 12 for path in folder.glob('trial_*'))
