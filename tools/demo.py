"""The demo: trains the embedded digit scenes on two ranks, then some of the same steps on one rank, and compares.

    python tools/demo.py [--steps N]

One rank goes on from a checkpoint of the two and trains the steps that they trained next. Ends with both loss curves, their
largest difference, and the speed-up of the second rank.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

RECIPE = 'pp_liteseg_digits'
TWO, ONE = Path('runs/demo'), Path('runs/demo-one-rank')
COMPARED = 25  # steps that one rank trains, enough to see the curves agree and to measure


def main() -> int:
    parser = argparse.ArgumentParser(description='Trains the embedded data set on two ranks and compares with one.')
    parser.add_argument('--steps', type=int, help='shorter than the recipe says')
    length = ['--set', f'train.steps={steps}'] if (steps := parser.parse_args().steps) else []
    print(f'== 1 of 3: {RECIPE} on two ranks', flush=True)
    if status := phalanx('train', RECIPE, *length, '--nproc_per_node', '2', '--fresh', '--save_dir', str(TWO)):
        return status
    saved = sorted((TWO / 'checkpoints').glob('step_*'))[-2]  # the last but one: what came after it is known
    first = int(saved.name.removeprefix('step_'))
    print(f'\n== 2 of 3: one rank goes on from step {first} of the two, for {COMPARED} steps', flush=True)
    short = ['--set', f'train.until={first + COMPARED}', 'evaluate.enabled=false']
    if status := phalanx('train', RECIPE, *length, *short, '--fresh', '--resume', str(saved), '--save_dir', str(ONE)):
        return status
    print('\n== 3 of 3: one rank against two', flush=True)
    compare(*(records(folder, range(first + 1, first + COMPARED + 1)) for folder in (ONE, TWO)))
    print(f'\nreport: {TWO / "report.html"}')
    return 0


def phalanx(*words: str) -> int:
    """The exit status of a command; each rank computes on one core, so that two ranks have twice the cores of one."""
    return subprocess.run(
        [sys.executable, '-m', 'phalanx', *words], env={**os.environ, 'OMP_NUM_THREADS': '1'}, check=False
    ).returncode


def records(folder: Path, steps: range) -> dict[int, dict[str, float]]:
    """The training lines of a run's log by step."""
    lines = map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines())
    return {line['step']: line for line in lines if line['kind'] == 'train' and line['step'] in steps}


def compare(one: dict[int, dict[str, float]], two: dict[int, dict[str, float]]) -> None:
    """Prints both loss curves, their largest difference, and the ratio of the samples a second."""
    steps = sorted(one.keys() & two.keys())
    print(f'{"step":>6} {"loss, 1 rank":>16} {"loss, 2 ranks":>16} {"difference":>12}')
    apart = {step: abs(two[step]['loss'] / one[step]['loss'] - 1) for step in steps}
    for step in steps:
        print(f'{step:>6} {one[step]["loss"]:>16.8f} {two[step]["loss"]:>16.8f} {apart[step]:>12.1e}')
    speed = {ranks: median(line['samples_per_s'] for line in run.values()) for ranks, run in ((1, one), (2, two))}
    print(f'largest relative difference of the losses: {max(apart.values()):.1e}')
    print(
        f'samples/s, one core a rank: {speed[1]:.1f} on 1 rank, {speed[2]:.1f} on 2 ranks: speed-up {speed[2] / speed[1]:.2f}'
    )


if __name__ == '__main__':
    sys.exit(main())
