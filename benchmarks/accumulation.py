"""Gradient accumulation beside a plain PyTorch loop: peak memory and time of a step at so many micro-batches.

    python benchmarks/accumulation.py [--micro_batches 4] [--repeats 5]

Both train the same network on the same images with the same loss and optimizer, each in processes of its own, in turns.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.nn import functional as F

from phalanx.engine.runs import open_job
from phalanx.engine.trainer import Trainer
from phalanx.families.segmentation.labels import VOID

SETTINGS = (
    'losses=[cross_entropy, cross_entropy, cross_entropy]',
    'norm_sync=off',
    'data={name: digit_scenes, train_scenes: 16, eval_scenes: 1, size: [192, 384]}',
    'transforms=[]',
    'train.global_batch_size=8',
    'train.workers=0',
    'ema=null',
    'clip=null',
    'device=cpu',
)
STEPS = 4  # timed, after one that is not


def plain_step(trainer: Trainer[Any, Any, Any], batch: Any, parts: int) -> None:
    """As a person would write it. Labels are all judged, so pixels are as many in each part."""
    for part in batch.split(parts):
        labels = part.label_maps()
        outputs = trainer.model(trainer.task.network_input(part))
        pixels = (batch.label_maps() != VOID).sum()
        loss = torch.stack([F.cross_entropy(logits, labels, ignore_index=VOID, reduction='sum') for logits in outputs]).sum()
        (loss / pixels).backward()
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()


def measure(how: str, parts: int) -> dict[str, float]:
    """Seconds of a step and MiB of its peak above what was there before it."""
    torch.set_num_threads(1)
    job = open_job('pp_liteseg_digits', [(text, text) for text in (*SETTINGS, f'train.micro_batches={parts}')])
    with TemporaryDirectory() as folder:
        trainer: Trainer[Any, Any, Any] = Trainer(job.recipe, job.task, folder=Path(folder), device=torch.device('cpu'))
        batches = trainer.batches()
        batch, seconds = next(batches), []
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(1 + STEPS):
            begin = time.perf_counter()
            if how == 'plain':
                plain_step(trainer, batch, parts)
            else:
                trainer.train_step(batch)
                trainer.at.step += 1
            seconds.append(time.perf_counter() - begin)
    return {'seconds': min(seconds[1:]), 'mib': (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 2**10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--micro_batches', type=int, default=4)
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--only', help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(measure(given.only, given.micro_batches)))
        return
    found: dict[str, list[dict[str, float]]] = {'plain': [], 'phalanx': []}
    for _ in range(given.repeats):
        for how, runs in found.items():
            words = [sys.executable, __file__, '--only', how, '--micro_batches', str(given.micro_batches)]
            runs.append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    for figure, unit in (('seconds', 's'), ('mib', 'MiB')):
        plain, ours = (median(run[figure] for run in found[how]) for how in ('plain', 'phalanx'))
        print(f'{figure}: plain {plain:.3g} {unit}, phalanx {ours:.3g} {unit}, ratio {ours / plain:.3f}')


if __name__ == '__main__':
    main()
