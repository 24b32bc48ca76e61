"""Accuracy at any number of ranks, and with larger batches under each rule for the learning rate.

    python benchmarks/accuracy_at_scale.py [text | camvid DATA_ROOT | bccd DATA_ROOT] [--out FOLDER] [--ranks N] [--longer T]

Every run sees the same number of samples. First 1, 2 and 4 ranks share the recipe's global batch, each with several seeds: a
training that begins with random weights ends elsewhere for a difference in the last bit, so one run of each would say nothing.
Then the batch is 4 and 8 times as large, with the learning rate by the rules `none`, `sqrt` and `linear`, trained by `--ranks`
processes, with T times the samples where `--longer` says so. One thread a rank. Runs that are in the folder already are not
made again. Prints a table, also kept as `table.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.cli.bench.show import as_markdown


class Training(NamedTuple):
    recipe: str
    samples: int
    batch: int  # of the recipe
    metric: str
    settings: tuple[str, ...] = ()


ON_CPU = ('precision.dtype=bf16', 'train.channels_last=true')  # of recipes that take hours
TRAININGS = {
    'text': Training('crnn_digits', 44_800, 16, 'accuracy'),
    'camvid': Training(
        'pp_liteseg_stdc1_camvid',
        20 * 367,
        8,
        'mean_iou',
        (*ON_CPU, 'transforms.1.size=[256,256]'),
    ),
    'bccd': Training(
        'ppyoloe_plus_s_bccd',
        30 * 205,
        8,
        'ap50',
        (*ON_CPU, 'loss.static_assigner_epochs=8', 'transforms.4.sizes=[192]', 'eval_transforms.0.size=[192,192]'),
    ),
}
WORLDS = (1, 2, 4)
SEEDS = (0, 1, 2)  # of each world
LARGER = (4, 8)
RULES = ('none', 'sqrt', 'linear')
WARMUP = 0.05  # of all steps, and so of all samples, whatever the batch


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('name', choices=TRAININGS)
    parser.add_argument('root', type=Path, nargs='?', help='where the data set is')
    parser.add_argument('--out', type=Path, default=Path('runs/accuracy_at_scale'))
    parser.add_argument('--ranks', type=int, default=2, help='of the runs with larger batches')
    parser.add_argument('--longer', type=int, default=1, metavar='T', help='larger batches train with T times the samples')
    given = parser.parse_args()
    training, out = TRAININGS[given.name], given.out / given.name
    if given.root is not None:
        training = training._replace(settings=(*training.settings, f'data.root={given.root.resolve()}'))
    longer = training._replace(samples=training.samples * given.longer)
    rows = [row(training, training.batch, 'none', ranks, SEEDS, out) for ranks in WORLDS]
    rows += [row(longer, training.batch * times, rule, given.ranks, SEEDS[:1], out) for times in LARGER for rule in RULES]
    table = as_markdown(rows)
    (out / 'table.md').write_text(table + '\n')
    print(table)


def row(training: Training, batch: int, rule: str, ranks: int, seeds: Sequence[int], out: Path) -> dict[str, str]:
    summaries: list[dict[str, Any]] = []
    for seed in seeds:
        folder = out / f'batch{batch}_{rule}_{ranks}_seed{seed}_{training.samples}'
        if not (folder / 'summary.json').exists():
            train(training, batch, rule, ranks, seed, folder)
        summaries.append(json.loads((folder / 'summary.json').read_text()))
    reached = [summary['metrics'][training.metric] for summary in summaries]
    return {
        'global batch': f'{batch}',
        'ranks': f'{ranks}',
        'learning rate': {'none': 'as it is', 'sqrt': 'by the square root', 'linear': 'in proportion'}[rule],
        'steps': f'{summaries[0]["steps"]:,}',
        training.metric: f'{statistics.fmean(reached):.3f}',
        'of each seed': ', '.join(f'{one:.3f}' for one in reached) if len(reached) > 1 else '',
    }


def train(training: Training, batch: int, rule: str, ranks: int, seed: int, folder: Path) -> None:
    steps = training.samples // batch
    settings = (
        *training.settings,
        *('device=cpu', 'train.workers=1', f'train.global_batch_size={batch}', f'train.steps={steps}', f'train.seed={seed}'),
        f'scaling={{rule: {rule}, reference_batch_size: {training.batch}}}',
        f'schedule.warmup_steps={round(WARMUP * steps)}',
        *(f'evaluate.every={steps}', f'checkpoint.every={steps}', f'report.every={max(1, steps // 20)}', 'ema=null'),
    )
    words = ['train', training.recipe, '--nproc_per_node', str(ranks), '--save_dir', str(folder), '--set', *settings]
    subprocess.run([sys.executable, '-m', 'phalanx', *words], env=os.environ | {'OMP_NUM_THREADS': '1'}, check=True)


if __name__ == '__main__':
    main()
