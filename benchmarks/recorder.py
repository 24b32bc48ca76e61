"""Cost of torch's flight recorder, which explains hangs, as a share of a training step of two ranks.

    python benchmarks/recorder.py [--recipe R] [--set KEY=VALUE ...] [--steps 3] [--blocks 20] [--calls 500]

The difference between two times of a step would be noise. So this counts the records of a step, and multiplies them by the cost
of one: the processor time of a collective in a process with the recorder, less that in a process without it, which take turns.
The collectives are those of a group of one, called as deep in the stack as those of the step, whose frames a record holds.
Each time is the least of its blocks.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import torch
import torch.distributed as torch_dist
from plain_ddp import CPU, WARMUP
from torch._C import _distributed_c10d as c10d

from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer
from phalanx.parallel import dist
from phalanx.parallel.flight_recorder import record_collectives

MANY = 20_000  # records that hold all collectives of the steps


def answer(work: Callable[[], None]) -> None:
    """Do `work` for each line of standard input and print its processor time in seconds."""
    for _ in sys.stdin:
        begin = time.process_time()
        work()
        print(time.process_time() - begin, flush=True)


def serve_steps(recipe: str, steps: int, keys: list[str], folder: Path) -> None:
    """Print the number of records per step and of frames in the deepest; then run a block of steps at each request."""
    dist.join(CPU)
    job = open_job(recipe, [(key, key) for key in keys])
    trainer: Trainer = Trainer(job.recipe, job.task, folder=folder, device=CPU)
    batch = next(trainer.batches())

    def train() -> None:
        for _ in range(steps):
            trainer.train_step(batch)
            trainer.progress.step += 1

    for _ in range(WARMUP):
        train()
    before = len(records())
    train()
    new = records()[before:]
    print(json.dumps([len(new) // steps, max(len(entry['frames']) for entry in new)]), flush=True)
    answer(train)


def records() -> list[dict[str, list[object]]]:
    entries: list[dict[str, list[object]]] = pickle.loads(vars(c10d)['_dump_fr_trace']())['entries']  # noqa: S301
    return entries


def serve_calls(calls: int, frames: int) -> None:
    """Call collectives of a group of one at each request, `frames` deep in the stack."""
    torch_dist.init_process_group('gloo', store=c10d.HashStore(), rank=0, world_size=1)
    value = torch.zeros(8)

    def call(depth: int) -> None:
        if depth > 1:
            call(depth - 1)
            return
        for _ in range(calls):
            torch_dist.all_reduce(value)

    answer(partial(call, frames))


class Server:
    """A process that answers requests with its processor time."""

    def __init__(self, words: list[str], **environment: str) -> None:
        command = [sys.executable, __file__, *words]
        process = subprocess.Popen(
            command,
            env=os.environ | environment | {'OMP_NUM_THREADS': '1'},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        self.requests: IO[str] = process.stdin
        self.answers: IO[str] = process.stdout

    def ask(self) -> None:
        self.requests.write('\n')
        self.requests.flush()

    def seconds(self) -> float:
        return float(self.answers.readline())

    def counts(self) -> tuple[int, int]:
        number, frames = json.loads(self.answers.readline())
        return number, frames


def least(servers: list[Server], blocks: int, *, together: bool) -> list[float]:
    """Least processor time of each server, asked at the same time or in turns; the first block warms up."""
    times = []
    for _ in range(blocks + 1):
        row = []
        for server in servers:
            server.ask()
            if not together:
                row.append(server.seconds())
        times.append(row or [server.seconds() for server in servers])
    return [min(own) for own in zip(*times[1:], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--recipe', default='pp_liteseg_digits')
    parser.add_argument('--set', nargs='+', action='extend', default=[], metavar='KEY=VALUE')
    parser.add_argument('--steps', type=int, default=3, help='steps per block')
    parser.add_argument('--blocks', type=int, default=20)
    parser.add_argument('--calls', type=int, default=500, help='collectives per block')
    parser.add_argument('--folder', type=Path, help=argparse.SUPPRESS)
    parser.add_argument('--frames', type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder:
        serve_steps(given.recipe, given.steps, ['train.workers=0', 'device=cpu', *given.set], given.folder)
        return
    if given.frames:
        serve_calls(given.calls, given.frames)
        return
    with TemporaryDirectory() as scratch:
        words = [
            '--recipe',
            given.recipe,
            '--steps',
            str(given.steps),
            '--folder',
            f'{scratch}/run',
            *(['--set', *given.set] if given.set else []),
        ]
        meet = {'WORLD_SIZE': '2', 'PHALANX_INIT_METHOD': f'file://{scratch}/meet', 'TORCH_FR_BUFFER_SIZE': str(MANY)}
        ranks = [Server(words, RANK=rank, LOCAL_RANK=rank, **meet) for rank in '01']
        number, frames = next(iter([rank.counts() for rank in ranks]))
        step = min(least(ranks, given.blocks, together=True)) / given.steps
        for rank in ranks:
            rank.requests.close()
    record_collectives()
    words = ['--calls', str(given.calls), '--frames', str(frames)]
    sides = [Server(words, TORCH_FR_BUFFER_SIZE=size) for size in (os.environ['TORCH_FR_BUFFER_SIZE'], '0')]
    on, off = (seconds / given.calls for seconds in least(sides, given.blocks, together=False))
    cost = number * (on - off)
    print(
        f'{number} records per step, {frames} frames deep; a collective takes {on * 1e6:.1f} us with a '
        f'record, {off * 1e6:.1f} us without; a step takes {step * 1e3:.1f} ms of processor time per rank: '
        f'records are {cost / step:.2%} of it'
    )


if __name__ == '__main__':
    main()
