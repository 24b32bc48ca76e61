"""PP-YOLOE+ S on blood cells, from scratch, beside a YOLO of Ultralytics: same images, epochs, size, batch and core.

    python benchmarks/bccd_beside_yolo.py BCCD_ROOT --yolo COMMAND [--model M] [--epochs E] [--size S] [--only NAME] [--out DIR]

`--yolo` is the command `yolo` of an environment of its own; nothing of it is imported here. Both train in float32 with one
thread and the settings that their makers give a short training, without evaluation on the way; the weights of the last epoch
are judged by pycocotools on the test images. What was done before in the same folder is not done again.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from phalanx.cli.bench.show import as_markdown

BATCH = 8
Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('root', type=Path, help='images and annotations/instances_{train,val,test}.json')
    parser.add_argument('--yolo', default='yolo', help='its command')
    parser.add_argument('--model', default='yolo11s')
    parser.add_argument('--epochs', type=int, default=30)
    parser.add_argument('--size', type=int, default=320)
    parser.add_argument('--only', choices=('phalanx', 'yolo'))
    parser.add_argument('--out', type=Path, default=Path('runs/bccd_beside_yolo'))
    given = parser.parse_args()
    root, out = given.root.resolve(), given.out.resolve()
    rows: list[Row] = []
    if given.only != 'yolo':
        rows.append(phalanx(root, out, given.epochs, given.size))
    if given.only != 'phalanx':
        rows.append(yolo(root, out, given.yolo, given.model, given.epochs, given.size))
    print(as_markdown(rows))


def phalanx(root: Path, out: Path, epochs: int, size: int) -> Row:
    folder = out / 'phalanx'
    sizes = [size + 32 * step for step in (-2, -1, 0, 1, 2)]
    settings = (
        *(f'data.root={root}', 'device=cpu', f'train.epochs={epochs}', f'train.global_batch_size={BATCH}', 'train.workers=1'),
        *(f'transforms.4.sizes={sizes}', f'eval_transforms.0.size=[{size},{size}]'),
        *(
            'ema=null',
            f'loss.static_assigner_epochs={epochs // 4}',
            f'evaluate.every_epochs={epochs}',
            f'checkpoint.every_epochs={epochs}',
        ),
    )
    run('train', 'ppyoloe_plus_s_bccd', '--set', *settings, '--save_dir', str(folder))
    summary = json.loads((folder / 'summary.json').read_text())
    told = run('eval', str(folder), '--json', '--set', 'data.eval=annotations/instances_test.json')
    judged = json.loads(told)
    return row('PP-YOLOE+ S', epochs, summary['samples_per_s'], judged['mean_ap'], judged['ap50'])


def yolo(root: Path, out: Path, command: str, model: str, epochs: int, size: int) -> Row:
    sets = {split: out / f'data_{split}' for split in ('val', 'test')}
    for split, folder in sets.items():
        if not folder.exists():
            annotations = f'data.eval=annotations/instances_{split}.json'
            run(
                'data',
                'rewrite',
                'ppyoloe_plus_s_bccd',
                '--set',
                f'data.root={root}',
                annotations,
                '--as',
                'yolo',
                '--out',
                str(folder),
            )
            names = '{0: RBC, 1: WBC, 2: Platelets}'
            (folder / 'set.yaml').write_text(f'path: {folder}\ntrain: images/train\nval: images/val\nnames: {names}\n')
    common = (f'imgsz={size}', f'batch={BATCH}', 'device=cpu', 'workers=1', f'project={out}', 'exist_ok=True', 'plots=False')
    if not (out / model / 'weights' / 'last.pt').exists():
        lengths = (f'epochs={epochs}', 'val=False', 'pretrained=False', 'seed=0', 'amp=False')
        call(
            command,
            'detect',
            'train',
            f'model={model}.yaml',
            f'data={sets["val"] / "set.yaml"}',
            f'name={model}',
            *lengths,
            *common,
        )
    weights = out / model / 'weights' / 'last.pt'
    call(
        command,
        'detect',
        'val',
        f'model={weights}',
        f'data={sets["test"] / "set.yaml"}',
        'save_json=True',
        'name=test',
        *common,
    )
    with (out / model / 'results.csv').open(newline='') as file:
        seconds = float(list(csv.DictReader(file))[-1]['time'])
    images = len(list((sets['val'] / 'images' / 'train').iterdir()))
    truth = root / 'annotations' / 'instances_test.json'
    mean_ap, ap50 = judged(truth, json.loads((out / 'test' / 'predictions.json').read_text()))
    return row(model, epochs, images * epochs / seconds, mean_ap, ap50)


def judged(truth: Path, found: list[dict[str, object]]) -> tuple[float, float]:
    """mAP and mAP50. The detections name images by the stem of their files and number classes from 1, as the truth does."""
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(truth))
        numbers = {Path(image['file_name']).stem: number for number, image in coco.imgs.items()}
        detections = coco.loadRes([{**one, 'image_id': numbers[str(one['image_id'])]} for one in found])
        evaluation = COCOeval(coco, detections, 'bbox')
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0]), float(evaluation.stats[1])


def row(name: str, epochs: int, rate: float, mean_ap: float, ap50: float) -> Row:
    return {'network': name, 'epochs': str(epochs), 'images/s': f'{rate:.2f}', 'mAP': f'{mean_ap:.3f}', 'mAP50': f'{ap50:.3f}'}


def run(*words: str) -> str:
    return call(sys.executable, '-m', 'phalanx', *words)


def call(*words: str) -> str:
    """What the command prints to its standard output. Raises CalledProcessError when it fails."""
    environment = os.environ | {'OMP_NUM_THREADS': '1'}
    return subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == '__main__':
    main()
