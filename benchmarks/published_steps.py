"""The training step of three published models on one core, beside what PaddlePaddle takes for it.

    python benchmarks/published_steps.py [--steps N] [--only NAME ...]

The trainer's own steps on embedded data, in float32 and in bf16 with channels last: medians without what loading takes, and
the share of the most that this core reaches in a large convolution or matrix product, measured in the same run.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from phalanx.cli.bench.flops import measured_peak
from phalanx.cli.bench.show import as_text
from phalanx.cli.bench.watched import WatchedTrainer
from phalanx.engine.runs import open_job
from phalanx.nn.precision import DTYPES
from phalanx.system.memory import keep_freed_memory

CPU = torch.device('cpu')


@dataclass(frozen=True)
class Published:
    """A step that was measured with PaddlePaddle 3.3.1, one thread, and what is the same here."""

    name: str
    seconds: tuple[float, float]  # the fastest and the slowest that was measured
    recipe: str
    settings: tuple[str, ...]


STEPS = (
    Published(
        'PP-LiteSeg-STDC1, 4 x 3 x 256 x 512',
        (5.2, 5.4),
        'pp_liteseg_digits',
        ('data.size=[256,512]', 'train.global_batch_size=4'),
    ),
    Published(
        'PP-YOLOE-s, 4 x 3 x 320 x 320',
        (1.66, 1.66),
        'ppyoloe_digits',
        ('data.size=[320,320]', 'train.global_batch_size=4'),
    ),
    Published(
        'CRNN-mv3, 32 x 3 x 32 x 100',
        (0.77, 0.80),
        'crnn_digits',
        ('model={name: crnn, backbone: mobilenet_v3, size: large, scale: 0.5, hidden_size: 96}', 'size=[100,32]'),
    ),
)
VARIANTS = (('fp32', False), ('fp32', True), ('bf16', True))  # precision, channels last


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--steps', type=int, default=7, help='how many are measured')
    parser.add_argument('--only', nargs='+', default=[''], metavar='NAME', help='models whose names begin so')
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as ranks do
    rows = []
    for published in STEPS:
        if published.name.startswith(tuple(given.only)):
            rows += [row_of(published, dtype, channels_last, given.steps) for dtype, channels_last in VARIANTS]
    print(as_text(rows))
    print(
        'times faster: than the fastest and than the slowest published step. share of peak: the best of convolution and matrix.'
    )


def row_of(published: Published, dtype: str, channels_last: bool, steps: int) -> dict[str, str]:
    seconds, flops = measure(published, dtype, channels_last, steps)
    peak = measured_peak(CPU, DTYPES[dtype], channels_last=channels_last).best
    return {
        'step': published.name,
        'variant': dtype + (', channels last' if channels_last else ''),
        'here': f'{seconds:.3f} s',
        'paddle': '-'.join(dict.fromkeys(f'{one:g}' for one in published.seconds)) + ' s',
        'times faster': '-'.join(dict.fromkeys(f'{one / seconds:.2f}' for one in published.seconds)),
        'GFLOP': f'{flops / 1e9:.1f}',
        'GFLOP/s': f'{flops / seconds / 1e9:.0f}',
        'peak': f'{peak / 1e9:.0f}',
        'share of peak': f'{flops / seconds / peak:.1%}',
    }


def measure(published: Published, dtype: str, channels_last: bool, steps: int) -> tuple[float, int]:
    """The median step without loading, and its operations."""
    keys = (*published.settings, f'precision.dtype={dtype}', f'train.channels_last={channels_last}')
    own = ('device=cpu', 'train.workers=0', 'data.eval_scenes=1' if 'crnn' not in published.recipe else 'data.eval_lines=1')
    job = open_job(published.recipe, [(key, key) for key in (*keys, *own)])
    with tempfile.TemporaryDirectory() as folder:
        trainer = WatchedTrainer(job.recipe, job.task, folder=Path(folder), device=CPU)
        flops = trainer.run(steps, warmup=2)
    phases = trainer.timeline.seconds()
    return statistics.median(math.fsum(step.values()) - step['data wait'] for step in phases), flops


if __name__ == '__main__':
    main()
