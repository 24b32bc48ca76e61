"""The segmentation networks on CamVid, from scratch, each for the same minutes of training on one core.

    python benchmarks/camvid_models.py DATA_ROOT [--minutes M] [--models NAME ...] [--out FOLDER]

Each network is first timed for a few steps; its schedule is then as long as the minutes allow. Evaluation comes on top: five
times on the validation images, at the end on the test images. Prints a table and writes `camvid_models.html` with the curves
and `camvid_models.json`. Networks that were done before in the same folder are not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from phalanx.cli.bench.show import as_markdown
from phalanx.report.charts import Line, chart
from phalanx.report.page import CSS

MODELS = {  # recipe, and what is other
    'PP-LiteSeg-STDC1': ('pp_liteseg_stdc1_camvid', ()),
    'OCRNet-HRNet-W18': ('ocrnet_hrnetw18_camvid', ()),
    'SegFormer-B0': ('segformer_b0_camvid', ()),
    'DeepLabv3+-ResNet50-vd': ('segformer_b0_camvid', ('model={name: deeplabv3p, backbone: resnet50_vd}',)),
    'UNet': ('segformer_b0_camvid', ('model={name: unet}',)),
}
COMMON = (
    *('device=cpu', 'precision.dtype=bf16', 'train.channels_last=true', 'train.global_batch_size=8', 'train.workers=1'),
    *('transforms.1.size=[256,256]', 'ema=null', 'schedule.warmup_steps=20'),
)
TIMED = 8  # steps to learn how fast a network is; the first two are not counted


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('root', type=Path, help='CamVid with train.txt, val.txt and test.txt')
    parser.add_argument('--minutes', type=float, default=12)
    parser.add_argument('--models', nargs='+', choices=MODELS, default=list(MODELS))
    parser.add_argument('--out', type=Path, default=Path('runs/camvid_models'))
    given = parser.parse_args()
    results = {name: trained(name, given.root.resolve(), given.minutes, given.out) for name in given.models}
    rows = [
        {
            'model': name,
            'steps': f'{one["steps"]}',
            'images/s': f'{one["rate"]:.2f}',
            'memory': f'{one["memory_mb"]:.0f} MiB',
            'val mean IoU': f'{one["curve"][-1][1]:.3f}',
            'test mean IoU': f'{one["test"]["mean_iou"]:.3f}',
            'test accuracy': f'{one["test"]["accuracy"]:.3f}',
        }
        for name, one in results.items()
    ]
    (given.out / 'camvid_models.json').write_text(json.dumps(results, indent=1))
    curve = [Line(name, [tuple(point) for point in one['curve']], i) for i, (name, one) in enumerate(results.items())]
    curves = chart('Validation mean IoU', curve, given.minutes, over='minutes of training', zero=True, linear=True, tall=True)
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>CamVid</title>'
        f'<style>{CSS}</style></head><body><section><div class="charts">{curves}</div></section></body></html>\n'
    )
    (given.out / 'camvid_models.html').write_text(page)
    print(as_markdown(rows))


def trained(name: str, root: Path, minutes: float, out: Path) -> dict[str, Any]:
    """Steps, images a second, memory, the curve (minutes, mean IoU) on the validation images, metrics on the test images."""
    recipe, others = MODELS[name]
    folder = out / name
    settings = [*COMMON, *others, f'data.root={root}']
    if not (folder / 'test.json').exists():
        timed = out / f'{name}.timed'
        briefly = (f'train.steps={TIMED}', 'report.every=1', 'evaluate.enabled=false')
        phalanx('train', recipe, '--set', *settings, *briefly, '--save_dir', str(timed))
        rate = statistics.median(line['samples_per_s'] for line in lines(timed, 'train')[2:])
        steps = int(60 * minutes * rate / 8)
        every = -(-steps // 5)
        intervals = (f'evaluate.every={every}', f'checkpoint.every={every}', f'report.every={max(1, steps // 40)}')
        phalanx('train', recipe, '--set', *settings, f'train.steps={steps}', *intervals, '--save_dir', str(folder))
        (folder / 'test.json').write_text(phalanx('eval', str(folder), '--json', '--set', 'data.eval=test.txt'))
    summary = json.loads((folder / 'summary.json').read_text())
    spent = minutes / summary['steps']
    return {
        'steps': summary['steps'],
        'rate': summary['samples_per_s'],
        'memory_mb': summary['peak_memory_mb'],
        'curve': [(spent * line['step'], line['mean_iou']) for line in lines(folder, 'eval')],
        'test': json.loads((folder / 'test.json').read_text()),
    }


def phalanx(*words: str) -> str:
    """What the command prints. Its messages go to the terminal; raises CalledProcessError when it fails."""
    environment = os.environ | {'OMP_NUM_THREADS': '1'}
    command = [sys.executable, '-m', 'phalanx', *words]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of this kind in the metrics of a run."""
    every = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
    return [line for line in every if line['kind'] == kind]


if __name__ == '__main__':
    main()
