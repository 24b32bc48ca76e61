"""Accuracy of PP-YOLOE n on generated images, with settings for unbalanced data and for large images, and without.

usage: python benchmarks/small_data.py rare|large|added [--steps N] [--seeds N]

`rare`: images of 96 x 96 pixels with one shape each, triangles 50 times as rare as circles and squares; with each sampling.
`large`: images of 4000 x 3000 pixels with 240 shapes of 16 pixels; resized to 512 x 512, and in windows of 320 x 320.
`added`: circles and squares first; then triangles are added, with the images of before and without them.

Each row is a training of the same number of steps and samples; it prints the AP of all classes and of the last one.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from phalanx.cli.functions import evaluate, train
from phalanx.data.samples import Image, Rng

Scenes = Iterator[tuple[Image, list[tuple[int, list[int]]]]]

NAMES = ('circle', 'square', 'triangle')
WINDOWS = {'inference.window': [320, 320], 'inference.window_stride': [288, 288]}  # overlap by the objects and 16 pixels
RESIZE = {'name': 'resize', 'target_size': [512, 512]}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    'rare': {
        'plain': {},
        'repeat_factor': {'sampling': {'name': 'repeat_factor', 'threshold': 1}},
        'class_balanced': {'sampling': {'name': 'class_balanced'}},
    },
    'large': {
        'windows': {'transforms': [{'name': 'random_window', 'target_size': [320, 320]}], 'eval_transforms': [], **WINDOWS},
        'resized': {'transforms': [RESIZE], 'eval_transforms': [RESIZE]},
    },
}
SETTINGS: dict[str, dict[str, Any]] = {
    'rare': {'transforms': ['random_distort', 'random_flip'], 'train.global_batch_size': 8},
    'large': {'train.global_batch_size': 4, 'evaluate.batch_size': 1},
}
STEPS = {'rare': 300, 'large': 160, 'added': 300}


def draw_shape(image: Image, label: int, corner: tuple[int, int], size: int, rng: Rng) -> None:
    """Draw a dark shape of `size` pixels with its upper left corner (x, y) at `corner`."""
    (x, y), colour = corner, [int(value) for value in rng.integers(0, 120, 3)]
    if label == 0:
        cv2.circle(image, (x + size // 2, y + size // 2), size // 2, colour, -1)
    elif label == 1:
        cv2.rectangle(image, (x, y), (x + size, y + size), colour, -1)
    else:
        cv2.fillPoly(image, [np.array([[x, y + size], [x + size, y + size], [x + size // 2, y]])], colour)


def small_scenes(labels: Sequence[int], rng: Rng) -> Scenes:
    """Yield images with labels and boxes (x, y, width, height)."""
    for label in labels:
        image = np.clip(rng.normal(rng.integers(150, 220), 25, (96, 96, 3)), 0, 255).astype(np.uint8)
        size = int(rng.integers(18, 34))
        x, y = (int(rng.integers(0, 96 - size)) for _ in range(2))
        draw_shape(image, label, (x, y), size, rng)
        yield image, [(label, [x, y, size, size])]


def large_scenes(count: int, rng: Rng) -> Scenes:
    """Yield images with labels and boxes (x, y, width, height)."""
    for _ in range(count):
        coarse = rng.integers(140, 230, (30, 40, 3)).astype(np.uint8)
        image = cv2.resize(coarse, (4000, 3000), interpolation=cv2.INTER_CUBIC).astype(np.uint8, copy=False)
        objects: list[tuple[int, list[int]]] = []
        # One object per cell of a grid, so that none overlap.
        for cell in rng.choice(60 * 80, 240, replace=False).tolist():
            x, y, label = cell % 80 * 50 + int(rng.integers(0, 30)), cell // 80 * 50 + int(rng.integers(0, 30)), cell % 3
            draw_shape(image, label, (x, y), 16, rng)
            objects.append((label, [x, y, 16, 16]))
        yield image, objects


def write(folder: Path, split: str, scenes: Scenes, names: Sequence[str] = NAMES) -> None:
    """Write the images of a split in COCO format."""
    images: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    (folder / split).mkdir()
    for number, (image, shapes) in enumerate(scenes):
        name = f'{split}/{number}.{"png" if len(image) < 1000 else "jpg"}'
        cv2.imwrite(str(folder / name), image)
        images.append({'id': number, 'file_name': name, 'width': image.shape[1], 'height': image.shape[0]})
        for label, box in shapes:
            row = {'id': len(objects) + 1, 'image_id': number, 'category_id': label, 'bbox': box, 'iscrowd': 0}
            objects.append({**row, 'area': box[2] * box[3]})
    classes = [{'id': label, 'name': name} for label, name in enumerate(names)]
    (folder / f'{split}.json').write_text(json.dumps({'images': images, 'annotations': objects, 'categories': classes}))


def measure(folder: Path, run: str, settings: dict[str, Any], names: Sequence[str] = NAMES) -> str:
    """Train, and return the AP of each class."""
    files = {split: settings.pop(split, f'{split}.json') for split in ('train', 'eval')}
    data = {'name': 'coco', 'root': str(folder), **files, 'classes': names, 'train_images': '.', 'eval_images': '.'}
    common = {'data': data, 'model.size': 'n', 'report.pictures': 0}
    common |= {f'{key}.every': settings['train.steps'] for key in ('evaluate', 'checkpoint')}
    train('ppyoloe_digits', overrides={**common, **settings}, save_dir=folder / run)
    found = evaluate(folder / run)
    of_classes = ', '.join(f'{row["class"]} {row["ap"]:.3f}' for row in found.table)
    return f'{run}: AP {found.metrics["mean_ap"]:.3f}, {of_classes}'


def write_splits(folder: Path, kind: str) -> None:
    """Write the images of `rare` or `large`."""
    for seed, split in enumerate(('train', 'eval')):
        rng = np.random.default_rng(seed)
        rare = [0] * 1000 + [1] * 1000 + [2] * 20 if split == 'train' else [0, 1, 2] * 40
        write(folder, split, small_scenes(rare, rng) if kind == 'rare' else large_scenes(24 if split == 'train' else 4, rng))


def write_added(folder: Path) -> None:
    """Write images of two classes (`before`), of a third one, of all, and evaluation images of two and of all classes."""
    old, new = [0, 1] * 500, [2] * 200
    splits = {'before': old, 'new': new, 'all': [*old, *new], 'eval_before': [0, 1] * 60, 'eval': [0, 1] * 60 + [2] * 60}
    for number, (split, labels) in enumerate(splits.items()):
        seed = 9 if 'eval' in split else number  # the same circles and squares are evaluated before and after
        names = NAMES[:2] if 'before' in split else NAMES
        write(folder, split, small_scenes(labels, np.random.default_rng(seed)), names)


def measure_added(folder: Path, steps: int, seed: int) -> Iterator[str]:
    """Yield the AP of two classes, and that of three after the third was added."""
    both = {**SETTINGS['rare'], 'train.seed': seed}
    before = {**both, 'train': 'before.json', 'eval': 'eval_before.json', 'train.steps': 4 * steps}
    yield measure(folder, f'before_{seed}', before, NAMES[:2])
    more = {**both, 'train.init_from': str(folder / f'before_{seed}'), 'train.steps': steps, 'optimizer.lr': 3e-4}
    yield measure(folder, f'new_images_{seed}', {**more, 'train': 'new.json'})
    yield measure(folder, f'all_images_{seed}', {**more, 'train': 'all.json', 'sampling': {'name': 'class_balanced'}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('kind', choices=STEPS)
    parser.add_argument('--steps', type=int)
    parser.add_argument('--seeds', type=int, default=1)
    options = parser.parse_args()
    steps = options.steps or STEPS[options.kind]
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.kind == 'added':
            write_added(folder)
        else:
            write_splits(folder, options.kind)
        for seed in range(options.seeds):
            if options.kind == 'added':
                rows += measure_added(folder, steps, seed)
                continue
            for variant, settings in VARIANTS[options.kind].items():
                both = {**SETTINGS[options.kind], 'train.steps': steps, 'train.seed': seed}
                rows.append(measure(folder, f'{variant}_{seed}', {**both, **settings}))
        print(*rows, sep='\n')


if __name__ == '__main__':
    main()
