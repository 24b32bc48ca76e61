"""Files of a run folder, as a training leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

NAUGHTY = '<b>"truck" & co</b>'


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text(''.join(json.dumps(line) + '\n' for line in lines))


def train_line(step: int, loss: float | None) -> dict[str, Any]:
    terms = {'main': loss, NAUGHTY: 0.125}
    rest = {'lr': 0.01, 'samples_per_s': 100.0, 'data_wait': 0.25, 'memory_mb': 2048.0}
    return {'kind': 'train', 'step': step, 'epoch': step / 8, 'loss': loss, 'terms': terms, **rest}


def write_run(folder: Path) -> None:
    """Write a run of 40 steps, as `Report` leaves it."""
    metrics = [train_line(step, 1 / step if step != 7 else None) for step in range(1, 41)]
    metrics.append({'kind': 'eval', 'step': 20, 'mean_iou': 0.8125, 'psnr': 31.5, 'samples': 13, 'seconds': 2.0})
    metrics.append({'kind': 'eval', 'step': 40, 'mean_iou': 0.6875, 'psnr': 32.5, 'samples': 13, 'seconds': 2.0})
    write_lines(folder / 'metrics.jsonl', metrics)
    facts, ranks = {'recipe': NAUGHTY}, [{'rank': 0, 'node': 'a', 'device': 'cpu', 'pid': 4321}]
    write_lines(
        folder / 'journal.jsonl',
        [
            {'kind': 'start', 'name': NAUGHTY, 'total_steps': 40, 'facts': facts, 'ranks': ranks, 'step': 0, 'time': 1.0},
            {'kind': 'warning', 'text': f'skipped {NAUGHTY}', 'step': 3, 'time': 2.0},
            {'kind': 'warning', 'text': f'skipped {NAUGHTY}', 'step': 5, 'time': 3.0},
        ],
    )
    rows = [{'class': NAUGHTY, 'iou': 0.625, 'pixels': 51234.0}, {'class': 'car', 'iou': None, 'pixels': 0.0}]
    (folder / 'table.json').write_text(json.dumps({'step': 40, 'rows': rows}))
    (folder / 'config.yml').write_text(f'task: segmentation  # {NAUGHTY} from http://example.org/recipe.yml\n')
    (folder / 'pictures').mkdir()
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(folder / 'pictures' / '00_0.png')
    (folder / 'pictures' / 'index.json').write_text(json.dumps([[{'caption': NAUGHTY, 'file': '00_0.png'}]]))


def finish(folder: Path) -> None:
    summary = {'metrics': {'mean_iou': 0.6875}, 'main_metric': 'mean_iou', 'best': 0.8125, 'best_step': 20, 'steps': 40}
    (folder / 'summary.json').write_text(json.dumps({**summary, 'seconds': 75.0, 'world_size': 1, 'samples_per_s': 99.5}))
