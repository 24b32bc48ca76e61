"""Steps to a given accuracy on new classes, with the rows of the classes that the weights know and with a fresh head.

    python benchmarks/class_rows.py [--seeds N] [--steps N]

A small PP-LiteSeg learns the embedded digits from 0 to 7. Its weights then start the training on all ten, listed the other way
round: once as `train.init_from` takes them, which finds the rows of eight digits and the background by their names, and once
without names, so that the three heads begin fresh. `frozen` is the first with `norm_sync: frozen`. Batches, rate and seed are
the same.
"""

import argparse
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

import phalanx
from phalanx.families.segmentation.data.digit_scenes import DigitScenes
from phalanx.families.segmentation.labels import VOID
from phalanx.report.page import read_lines

KNOWN = ('background', *'01234567')
ALL = (*reversed('0123456789'), 'background')
SCENES = {'train': 400, 'eval': 40}
EVERY = 5  # steps between evaluations
GOALS = (0.04, 0.06, 0.08, 0.1)  # mean IoU
RECIPE = {
    'model.width': 0.25,
    'data': {'name': 'file_list', 'classes': 'classes.txt'},
    'norm_sync': 'off',
    'device': 'cpu',
    'train.workers': 0,
    'ema': None,
    'evaluate.batch_size': 20,
    'report.pictures': 0,
    'checkpoint.every': 100,
}


def main() -> None:
    parser = argparse.ArgumentParser(description='Steps to an accuracy with class rows carried over and with a fresh head.')
    parser.add_argument('--seeds', type=int, default=2)
    parser.add_argument('--steps', type=int, default=45, help='of each training on the new classes')
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / 'known', KNOWN)
        write(folder / 'all', ALL)
        train(folder, 'known', folder / 'weights', 300, 0, {'evaluate.every': 300})
        (nameless,) = (folder / 'weights' / 'best').resolve().glob('model*.safetensors')
        shutil.copy(nameless, folder / 'nameless.safetensors')
        print('| seed | start | ' + ' | '.join(f'steps to {goal}' for goal in GOALS) + ' | at the end |')
        for seed in range(1, given.seeds + 1):
            starts = {
                'rows by name': {'train.init_from': str(folder / 'weights')},
                'rows by name, frozen': {'train.init_from': str(folder / 'weights'), 'norm_sync': 'frozen'},
                'fresh head': {'train.init_from': str(folder / 'nameless.safetensors')},
            }
            for start, settings in starts.items():
                curve = train(folder, 'all', folder / f'{start} {seed}', given.steps, seed, settings)
                reached = [next((str(step) for step, iou in curve if iou >= goal), 'never') for goal in GOALS]
                print(f'| {seed} | {start} | {" | ".join(reached)} | {curve[-1][1]:.3f} |', flush=True)


def write(folder: Path, classes: Sequence[str]) -> None:
    """The scenes as images and label maps with the ids of `classes`; digits that are none of them are void."""
    scenes = DigitScenes(train_scenes=SCENES['train'], eval_scenes=SCENES['eval'], size=(48, 64), digit_height=(32, 44))
    ids = np.full(256, VOID, np.uint8)
    for number, name in enumerate(scenes.class_names):
        if name in classes:
            ids[number] = classes.index(name)
    folder.mkdir()
    (folder / 'classes.txt').write_text('\n'.join(classes))
    for split, file in (('train', 'train.txt'), ('eval', 'val.txt')):
        drawn, pairs = scenes.split(split), []
        for index in range(len(drawn)):
            image, labels = drawn.read(index)
            pairs.append(f'{split}_{index}.png {split}_{index}_labels.png')
            cv2.imwrite(str(folder / f'{split}_{index}.png'), image)
            cv2.imwrite(str(folder / f'{split}_{index}_labels.png'), ids[labels])
        (folder / file).write_text('\n'.join(pairs))


def train(folder: Path, data: str, run: Path, steps: int, seed: int, settings: Mapping[str, object]) -> list[tuple[int, float]]:
    """The mean IoU by step, of a training on `data`."""
    weights = [0.15 if name == 'background' else 1.0 for name in (KNOWN if data == 'known' else ALL)]
    losses = [{'name': 'cross_entropy', 'class_weights': weights}] * 3
    overrides = {**RECIPE, 'data.root': str(folder / data), 'loss': losses, 'train.steps': steps, 'train.seed': seed}
    phalanx.train('pp_liteseg_digits', save_dir=run, overrides={'evaluate.every': EVERY, **overrides, **settings})
    return [(line['step'], line['mean_iou']) for line in read_lines(run / 'metrics.jsonl') if line['kind'] == 'eval']


if __name__ == '__main__':
    main()
