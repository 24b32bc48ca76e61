"""Cost of torch's flight recorder, which explains hangs: training steps of two ranks with it and without it.

    python benchmarks/recorder.py [--recipe R] [--set KEY=VALUE ...] [--steps 10] [--blocks 12]

The recorder is switched on or off for the life of a process, so there are two runs of two ranks each, which take turns: blocks
of steps with the recorder and without it alternate, while the other run waits.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import IO

import torch
from plain_ddp import CPU, WARMUP

from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer
from phalanx.parallel import dist

SIZES = {'with': '200', 'without': '0'}  # records kept


def serve(recipe: str, steps: int, keys: list[str], folder: Path) -> None:
    """Run a block of steps for each line of standard input; print its processor time and its time, per step."""
    torch.set_num_threads(1)
    dist.join(CPU)
    job = open_job(recipe, [(key, key) for key in keys])
    trainer: Trainer = Trainer(job.recipe, job.task, folder=folder, device=CPU)
    batch = next(trainer.batches())
    for block, _ in enumerate(sys.stdin):
        begin, used = time.perf_counter(), time.process_time()
        for _ in range(steps if block else WARMUP):
            trainer.train_step(batch)
            trainer.progress.step += 1
        print(json.dumps([(time.process_time() - used) / steps, (time.perf_counter() - begin) / steps]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--recipe', default='pp_liteseg_digits')
    parser.add_argument('--set', nargs='+', action='extend', default=[], metavar='KEY=VALUE')
    parser.add_argument('--steps', type=int, default=10)
    parser.add_argument('--blocks', type=int, default=12)
    parser.add_argument('--folder', type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    keys = ['train.workers=0', 'device=cpu', *given.set]
    if given.folder:
        serve(given.recipe, given.steps, keys, given.folder)
        return
    with TemporaryDirectory() as scratch:
        command = [sys.executable, __file__, '--recipe', given.recipe, '--steps', str(given.steps), '--set', *keys]
        ranks: dict[str, list[tuple[IO[str], IO[str]]]] = {}
        for side, size in SIZES.items():
            for rank in '01':
                own = {'RANK': rank, 'LOCAL_RANK': rank, 'WORLD_SIZE': '2', 'TORCH_FR_BUFFER_SIZE': size}
                meet = {'PHALANX_INIT_METHOD': f'file://{scratch}/{side}'}
                process = subprocess.Popen(
                    [*command, '--folder', f'{scratch}/run-{side}'],
                    env=os.environ | own | meet,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                assert process.stdin is not None and process.stdout is not None
                ranks.setdefault(side, []).append((process.stdin, process.stdout))
        found: dict[str, list[list[float]]] = {side: [] for side in SIZES}
        for block in range(given.blocks + 1):
            for side in sorted(SIZES, reverse=block % 2 == 1):
                for to, _ in ranks[side]:
                    to.write('\n')
                    to.flush()
                times = [json.loads(answer.readline()) for _, answer in ranks[side]]
                if block:  # the first one warms up
                    found[side].append([sum(time[0] for time in times), max(time[1] for time in times)])
        for pipes in ranks.values():
            for to, _ in pipes:
                to.close()
        for number, name in enumerate(('processor time of both ranks', 'time')):
            on, off = ([row[number] * 1000 for row in found[side]] for side in SIZES)
            ratios = [one / other for one, other in zip(on, off, strict=True)]
            print(
                f'{name} per step: {median(on):.2f} ms with, {median(off):.2f} ms without; ratio of each pair of blocks: ',
                end='',
            )
            print(f'median {median(ratios):.4f}, least over least {min(on) / min(off):.4f}')


if __name__ == '__main__':
    main()
