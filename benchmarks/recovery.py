"""How long a run stands still when a rank dies, and how many steps it loses.

    python benchmarks/recovery.py [--ranks N] [--every N] [--times N]

Trains the embedded data set under `--max_restart 1`, kills one rank with SIGKILL at a random moment after a checkpoint, and
prints the seconds from there to the first new step, by phase, and the steps that had to be made again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil


class Recovery(NamedTuple):
    """Seconds since the kill, and steps."""

    noticed: float  # the launcher has ended the other ranks
    started: float  # all ranks have built their networks and read the checkpoint
    stepped: float  # the first new step is logged
    lost: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--ranks', type=int, default=2)
    parser.add_argument('--every', type=int, default=5, help='steps between checkpoints')
    parser.add_argument('--times', type=int, default=3)
    given = parser.parse_args()
    found = [one_run(given.ranks, given.every, random.Random(number)) for number in range(given.times)]
    print(f'{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {given.ranks} ranks, a checkpoint every {given.every} steps')
    for name in Recovery._fields:
        values = [getattr(recovery, name) for recovery in found]
        print(f'{name:8} median {statistics.median(values):6.1f}   all {", ".join(f"{value:.1f}" for value in values)}')


def one_run(ranks: int, every: int, chance: random.Random) -> Recovery:
    """One run with one kill in it."""
    with tempfile.TemporaryDirectory() as name:
        folder, output = Path(name), Path(name) / 'output.txt'
        command = [sys.executable, '-m', 'phalanx', 'train', 'pp_liteseg_digits', '--nproc_per_node', str(ranks)]
        sets = ['train.steps=1000', 'report.every=1', 'evaluate.enabled=false', f'checkpoint.every={every}', 'device=cpu']
        with output.open('w') as file:
            launcher = psutil.Popen(
                [*command, '--max_restart', '1', '--save_dir', str(folder / 'run'), '--set', *sets],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, 'OMP_NUM_THREADS': '1'},
            )
        try:
            wait(lambda: (folder / 'run' / 'latest').exists())
            time.sleep(chance.uniform(0, 3))
            chance.choice(launcher.children()).kill()
            killed = time.time()
            reached = last_step(folder)
            wait(lambda: 'starting again' in output.read_text())
            noticed = time.time() - killed
            wait(lambda: len(events(folder, 'start')) > 1)
            start = events(folder, 'start')[1]
            wait(
                lambda: (folder / 'run' / 'metrics.jsonl').stat().st_mtime > start['time'] and last_step(folder) > start['step']
            )
            return Recovery(noticed, start['time'] - killed, time.time() - killed, reached - start['step'])
        finally:
            launcher.terminate()
            launcher.wait()


def last_step(folder: Path) -> int:
    lines = (folder / 'run' / 'metrics.jsonl').read_text().splitlines()
    return int(json.loads(lines[-1])['step']) if lines else 0


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / 'run' / 'journal.jsonl').read_text().splitlines()
    return [event for event in map(json.loads, lines) if event['kind'] == kind]


def wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


if __name__ == '__main__':
    main()
