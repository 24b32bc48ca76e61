"""What a step costs besides its arithmetic: waiting for data, and a checkpoint every 100 steps.

    python benchmarks/overheads.py [--recipe R] [--set KEY=VALUE ...] [--workers N] [--blocks N]

One rank with one thread trains blocks of steps; every second one begins with a checkpoint, which is written while training goes
on, and ends when that is on disk. What such a block takes longer is what a checkpoint costs. Needs a core for the rank and one
for each worker.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from phalanx.cli.bench.data import worker_rate
from phalanx.cli.bench.watched import WatchedTrainer
from phalanx.engine.runs import open_job

EVERY = 100  # steps between checkpoints


class Block(NamedTuple):
    seconds: float
    waited: float  # of them, for data


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--recipe', default='pp_liteseg_digits')
    parser.add_argument('--set', nargs='+', action='extend', default=[], metavar='KEY=VALUE')
    parser.add_argument('--workers', type=int, default=1)
    parser.add_argument('--blocks', type=int, default=6, help='with and without a checkpoint, each')
    parser.add_argument('--steps', type=int, default=10, help='of a block')
    given = parser.parse_args()
    torch.set_num_threads(1)
    keys = ('device=cpu', f'train.workers={given.workers}', 'data.eval_scenes=1', *given.set)
    job = open_job(given.recipe, [(key, key) for key in keys])
    with tempfile.TemporaryDirectory() as folder:
        trainer = WatchedTrainer(job.recipe, job.task, folder=Path(folder), device=torch.device('cpu'))
        trainer.until = 100 * given.blocks * given.steps  # not reached
        batches = trainer.batches()
        block(trainer, batches, given.steps, save=True)  # the first holds what happens once, and what workers had ready
        plain, saving = [], []
        for _ in range(given.blocks):
            plain.append(block(trainer, batches, given.steps, save=False))
            saving.append(block(trainer, batches, given.steps, save=True))
        size = sum(file.stat().st_size for file in next(Path(folder).glob('checkpoints/*')).iterdir())
    step = statistics.median(one.seconds for one in plain) / given.steps
    extra = statistics.median(later.seconds - earlier.seconds for earlier, later in zip(plain, saving, strict=True))
    waited = sum(one.waited for one in plain) / sum(one.seconds for one in plain)
    rate = worker_rate(trainer.dataset, job.task.collate, trainer.stream)
    trained = trainer.stream.global_batch_size / step
    print(
        f'{job.name}: {1000 * step:.1f} ms a step, {trained:.1f} samples/s; workers: {given.workers}, {rate:.1f} samples/s each'
    )
    print(f'waiting for data            {waited:.2%} of the time')
    print(f'a checkpoint of {size / 2**20:.0f} MiB     {1000 * extra:.0f} ms')
    print(f'  every {EVERY} steps           {extra / (EVERY * step):.2%} of the time')


def block(trainer: WatchedTrainer[Any, Any, Any], batches: Iterator[list[Any]], steps: int, *, save: bool) -> Block:
    """Some steps, with a checkpoint begun after the first of them."""
    begin, waited = time.perf_counter(), 0.0
    for number in range(steps):
        asked = time.perf_counter()
        micro_batches = next(batches)
        waited += time.perf_counter() - asked
        trainer.train_step(micro_batches)
        trainer.step += 1
        if save and number == 0:
            trainer.save()
    trainer.end_save()
    trainer.read_numbers(keep=0)
    trainer.timeline.clear()
    return Block(time.perf_counter() - begin, waited)


if __name__ == '__main__':
    main()
