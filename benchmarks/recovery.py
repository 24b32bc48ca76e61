"""Time that a run stands still when a rank dies, and the steps it loses.

    python benchmarks/recovery.py [--ranks N] [--every N] [--times N]

Trains the embedded data set at a small size under `--max_restart`, kills one rank with SIGKILL at a random moment after a
checkpoint, and prints the seconds from there to the first new step, by phase, and the steps that had to be made again; then
kills the next one. Samples are made by the ranks themselves: loading data is left out.
"""

import argparse
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

from phalanx.report.page import read_lines

PATIENCE = 150  # seconds for what takes some ten
SETTINGS = (
    *('train.steps=100000', 'train.workers=0', 'train.global_batch_size=4', 'data.size=[64,96]', 'data.train_scenes=64'),
    *('report.every=1', 'evaluate.enabled=false', 'device=cpu'),
)


class Recovery(NamedTuple):
    """Seconds since the kill, and steps."""

    noticed: float  # the launcher has ended the other ranks
    started: float  # all ranks have built their networks and read the checkpoint
    stepped: float  # the first new step is logged
    lost: int


class Run:
    """A training on several ranks under a launcher, in a folder of its own."""

    def __init__(self, folder: Path, ranks: int, every: int, restarts: int) -> None:
        self.folder, self.output = folder / 'run', folder / 'output.txt'
        words = ['train', 'pp_liteseg_digits', '--nproc_per_node', str(ranks), '--max_restart', str(restarts)]
        keys = ['--save_dir', str(self.folder), '--set', *SETTINGS, f'checkpoint.every={every}']
        with self.output.open('w') as output:
            self.launcher = psutil.Popen(
                [sys.executable, '-m', 'phalanx', *words, *keys],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, 'OMP_NUM_THREADS': '1'},
            )

    def recovery(self, chance: random.Random) -> Recovery:
        """Kill a rank some time after the newest checkpoint, and waits until a step is made that was not made before it."""
        starts = len(self.starts())
        before = (self.folder / 'latest').resolve()
        self.wait(lambda: (self.folder / 'latest').resolve() != before)
        time.sleep(chance.uniform(0, 2))
        reached = self.last_step()
        chance.choice(self.ranks()).kill()
        killed = time.time()
        self.wait(lambda: self.output.read_text().count('starting again') == starts)
        noticed = time.time()
        self.wait(lambda: len(self.starts()) > starts)
        start = self.starts()[-1]
        self.wait(lambda: self.last_step() > start['step'])
        return Recovery(noticed - killed, start['time'] - killed, time.time() - killed, reached - start['step'])

    def ranks(self) -> list[psutil.Process]:
        return [child for child in self.launcher.children() if 'RANK' in child.environ()]

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            if self.launcher.poll() is not None or time.monotonic() > end:
                sys.exit(f'the run did not go on:\n{self.output.read_text()[-2000:]}')
            time.sleep(0.02)

    def starts(self) -> list[dict[str, Any]]:
        return [event for event in read_lines(self.folder / 'journal.jsonl') if event['kind'] == 'start']

    def last_step(self) -> int:
        return max((line['step'] for line in read_lines(self.folder / 'metrics.jsonl')), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--ranks', type=int, default=2)
    parser.add_argument('--every', type=int, default=5, help='steps between checkpoints')
    parser.add_argument('--times', type=int, default=3)
    given = parser.parse_args()
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), given.ranks, given.every, given.times)
        try:
            run.wait(lambda: run.last_step() > 0)
            found = [run.recovery(chance) for _ in range(given.times)]
        finally:
            run.launcher.terminate()
            run.launcher.wait()
    print(f'{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {given.ranks} ranks, a checkpoint every {given.every} steps')
    for name in Recovery._fields:
        values = [getattr(recovery, name) for recovery in found]
        print(f'{name:8} median {statistics.median(values):6.1f}   all {", ".join(f"{value:.1f}" for value in values)}')


if __name__ == '__main__':
    main()
