"""The demo: trains the embedded digit scenes on two ranks, kills one of them during training, and compares with one rank.

    python tools/demo.py [--steps N]

A rank has one core, for its loader too. After the kill the ranks resume from their last checkpoint; steps that were trained
twice have the same losses, bit by bit. Then one rank resumes from a checkpoint of the two, over steps that they trained next.
Last, two independent trainings run side by side: two ranks of this machine cannot be faster.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import psutil

RECIPE = 'unet_digits'
TWO, ONE, SIDE_BY_SIDE = Path('runs/demo'), Path('runs/demo-one-rank'), (Path('runs/demo-first'), Path('runs/demo-second'))
COMPARED = 40  # steps that one rank trains, enough to see the curves agree and to measure
Losses = dict[int, dict[str, float]]  # the training lines of a run's log by step


def main() -> int:
    parser = argparse.ArgumentParser(description='Trains the embedded data set on two ranks and compares with one.')
    parser.add_argument('--steps', type=int, default=700, help='length of the training (700, that of the recipe)')
    steps, begun = parser.parse_args().steps, time.monotonic()
    length = ['--set', f'train.steps={steps}']
    cores = usable_cores()[:2]
    print(f'== 1 of 3: {RECIPE} on two ranks; one of them is killed during training', flush=True)
    two = start(cores, *length, '--nproc_per_node', '2', '--max_restart', '1', '--fresh', '--save_dir', str(TWO))
    killed = kill_a_rank(two, after=steps * 3 // 5)
    if status := two.wait():
        return status
    whole = lines_of(TWO)

    # the last but one checkpoint: the log of the two ranks has the steps after it
    first = int(sorted((TWO / 'checkpoints').glob('step_*'))[-2].name.removeprefix('step_'))
    saved = ['--resume', str(TWO / 'checkpoints' / f'step_{first:07}')]
    short = ['--set', f'train.until={first + COMPARED}', 'evaluate.enabled=false', 'report.pictures=0', 'train.micro_batches=2']
    print(f'\n== 2 of 3: one rank resumes from step {first} of the two, for {COMPARED} steps', flush=True)
    one = start(cores[:1], *length, *short, '--fresh', *saved, '--save_dir', str(ONE))
    if status := one.wait():
        return status

    print('\n== 3 of 3: the same steps in two independent trainings at the same time', flush=True)
    pairs = [
        start([core], *length, *short, '--fresh', *saved, '--save_dir', str(folder), quiet=True)
        for core, folder in zip(cores, SIDE_BY_SIDE, strict=False)
    ]
    statuses = [process.wait() for process in pairs]
    if any(statuses):
        return max(statuses)

    # losses side by side, the repeated steps of the killed run, and speeds
    print()
    window = range(first + 1, first + COMPARED + 1)
    alone = {step: line for step, line in lines_of(ONE).items() if step in window}
    compare(alone, {step: whole[step] for step in alone})
    if killed:
        same = sum(line['loss'] == whole[step]['loss'] for step, line in killed.items())
        print(f'killed at step {max(killed)}: of {len(killed)} losses logged since the checkpoint, {same} are repeated exactly')
    speeds(alone, whole, [lines_of(folder) for folder in SIDE_BY_SIDE[: len(pairs)]])
    print(f'mean IoU {best_of(TWO):.3f} on 200 scenes in other handwriting; {(time.monotonic() - begun) / 60:.1f} minutes')
    print(f'report: {TWO / "report.html"}')
    return 0


def usable_cores() -> list[int]:
    """The cores that this process may use; none where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else []


def start(cores: list[int], *words: str, quiet: bool = False) -> subprocess.Popen[bytes]:
    """`phalanx train` with these words, on these cores alone, one thread per rank."""
    usable = usable_cores()
    if cores:
        os.sched_setaffinity(0, cores)  # which the command takes over
    try:
        return subprocess.Popen(
            [sys.executable, '-m', 'phalanx', 'train', RECIPE, *words],
            env={**os.environ, 'OMP_NUM_THREADS': '1'},
            stdout=subprocess.DEVNULL if quiet else None,
        )
    finally:
        if cores:
            os.sched_setaffinity(0, usable)


def kill_a_rank(launcher: subprocess.Popen[bytes], *, after: int) -> Losses:
    """Kills the second rank when a step beyond `after` is logged; what the log said of the steps since the last checkpoint."""
    while launcher.poll() is None:
        logged = lines_of(TWO)
        ranks = [each for each in psutil.Process(launcher.pid).children() if rank_of(each) == '1']
        if ranks and max(logged, default=0) > after:
            print(f'== kill -9 {ranks[0].pid}: rank 1', flush=True)
            ranks[0].send_signal(signal.SIGKILL)
            saved = max(int(each.name.removeprefix('step_')) for each in (TWO / 'checkpoints').glob('step_*'))
            return {step: line for step, line in logged.items() if step > saved}
        time.sleep(0.1)
    return {}


def rank_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get('RANK')
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def lines_of(folder: Path) -> Losses:
    """The training lines of a run's log by step; of a step that was trained again, the last."""
    log = folder / 'metrics.jsonl'
    text = log.read_text() if log.is_file() else ''
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith('\n')]
    return {line['step']: line for line in lines if line['kind'] == 'train'}


def compare(one: Losses, two: Losses) -> None:
    """Prints both loss curves, and their largest difference."""
    print(f'{"step":>6} {"loss, 1 rank":>16} {"loss, 2 ranks":>16} {"difference":>12}')
    apart = {step: abs(two[step]['loss'] / one[step]['loss'] - 1) for step in sorted(one)}
    for step, difference in apart.items():
        print(f'{step:>6} {one[step]["loss"]:>16.8f} {two[step]["loss"]:>16.8f} {difference:>12.1e}')
    print(f'largest relative difference of the losses: {max(apart.values()):.1e}')


def speeds(one: Losses, two: Losses, side_by_side: list[Losses]) -> None:
    """Prints the samples/s of one rank and of two, and of what runs side by side."""
    alone, together = speed(one), speed({step: two[step] for step in one})
    print(f'samples/s, one core per rank: {alone:.1f} on 1 rank, {together:.1f} on 2 ranks: speed-up {together / alone:.2f}')
    if len(side_by_side) == 2:
        ceiling = sum(speed({step: each[step] for step in one}) for each in side_by_side) / alone
        print(
            f'two trainings side by side make {ceiling:.2f} times the samples of one: what two cores of this machine can give'
        )


def speed(lines: Losses) -> float:
    return median(line['samples_per_s'] for line in lines.values())


def best_of(folder: Path) -> float:
    """The metric of the best checkpoint of a run."""
    best: float = json.loads((folder / 'summary.json').read_text())['best']
    return best


if __name__ == '__main__':
    sys.exit(main())
