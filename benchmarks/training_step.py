"""A training step beside plain PyTorch: its time and its peak memory, with gradient accumulation and without.

    python benchmarks/training_step.py [--recipe R] [--set KEY=VALUE ...] [--micro_batches 1 4] [--steps 5] [--repeats 5]

Both train the same network on the same images with the same loss and optimizer, on one core, each in processes of its own, in
turns. The other side is plain_ddp.py.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

import torch
from plain_ddp import CPU, WARMUP

from phalanx.bench.show import format_text
from phalanx.engine.job import open_job
from phalanx.engine.meters import peak_memory_mb
from phalanx.engine.trainer import Trainer

PLAIN = Path(__file__).with_name('plain_ddp.py')
# `cross_entropy` has weights that targets tell; `ema` and `clip` are more than a plain step.
DIGITS = ('loss=[cross_entropy, cross_entropy, cross_entropy]', 'data.size=[192,384]', 'data.train_scenes=16')
SETTINGS = ('train.global_batch_size=8', 'train.workers=0', 'norm_sync=off', 'ema=null', 'clip=null', 'device=cpu')


def measure(recipe: str, steps: int, keys: list[str]) -> dict[str, float]:
    """The mean step of Phalanx in seconds, and its peak memory in MiB above that of the start."""
    torch.set_num_threads(1)
    job = open_job(recipe, [(key, key) for key in keys])
    with TemporaryDirectory() as folder:
        trainer: Trainer = Trainer(job.recipe, job.task, folder=Path(folder), device=CPU)
        batch = next(trainer.batches())
        base, seconds = peak_memory_mb(CPU), []
        for _ in range(WARMUP + steps):
            begin = time.perf_counter()
            trainer.train_step(batch)
            trainer.progress.step += 1
            seconds.append(time.perf_counter() - begin)
    return {'step_s': fmean(seconds[WARMUP:]), 'memory_mb': peak_memory_mb(CPU) - base}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--recipe', help='default: pp_liteseg_digits at 384 x 192')
    parser.add_argument('--set', nargs='+', action='extend', default=[], metavar='KEY=VALUE')
    parser.add_argument('--micro_batches', type=int, nargs='+', default=[1, 4])
    parser.add_argument('--steps', type=int, default=5)
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--only_phalanx', action='store_true', help=argparse.SUPPRESS)
    given = parser.parse_args()
    recipe, own = (given.recipe, ()) if given.recipe else ('pp_liteseg_digits', DIGITS)
    if given.only_phalanx:
        print(json.dumps(measure(recipe, given.steps, given.set)))
        return
    rows = []
    # each side runs in a process of its own, in turns
    for parts in given.micro_batches:
        keys = [*own, *SETTINGS, *given.set, f'train.micro_batches={parts}']
        sides = {
            'plain': [str(PLAIN), recipe, str(given.steps), *keys],
            'phalanx': [__file__, '--only_phalanx', '--recipe', recipe, '--steps', str(given.steps), '--set', *keys],
        }
        found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for _ in range(given.repeats):
            for side, words in sides.items():
                output = subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE, text=True).stdout
                found[side].append(json.loads(output.splitlines()[-1]))
        # medians over the repeats
        for key, unit in (('step_s', 's'), ('memory_mb', 'MiB')):
            plain, ours = (median(run[key] for run in found[side]) for side in ('plain', 'phalanx'))
            figures = {'plain': f'{plain:.3g} {unit}', 'Phalanx': f'{ours:.3g} {unit}', 'ratio': f'{ours / plain:.3f}'}
            rows.append({'micro-batches': str(parts), '': key, **figures})
    print(format_text(rows))


if __name__ == '__main__':
    main()
