"""Data sets in files, and a recipe that trains on one."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np

from phalanx.data.samples import Split
from phalanx.engine.loader import epoch_order
from phalanx.synthetic.scenes import DIGITS, render_scene
from running import TINY

FILES = (*TINY, 'data={name: file_list, root: data, classes: [sky, road]}', 'train.global_batch_size=4')


def write_data_set(folder: Path, count: int = 8) -> Path:
    """A data set of `count` images in files, with one list for both splits."""
    rng = np.random.default_rng(0)
    (folder / 'data').mkdir()
    for number in range(count):
        cv2.imwrite(str(folder / 'data' / f'{number}.jpg'), rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
        cv2.imwrite(str(folder / 'data' / f'{number}.png'), rng.integers(0, 2, (64, 64), dtype=np.uint8))
    lines = ''.join(f'{number}.jpg {number}.png\n' for number in range(count))
    for name in ('train.txt', 'val.txt'):
        (folder / 'data' / name).write_text(lines)
    return folder / 'data'


def write_sparse_objects(folder: Path, train: int, evaluation: int) -> None:
    """Write digit scenes in COCO's format, of which the second four of the first epoch and every fifth have no objects."""
    empty: dict[Split, set[int]] = {'train': {*epoch_order(0, 0, train)[4:8].tolist(), *range(0, train, 5)}, 'eval': {0}}
    for split, count in ('train', train), ('eval', evaluation):
        (folder / split).mkdir(parents=True)
        annotations = []
        for number in range(count):
            drawn = render_scene(
                number, split, size=(64, 64), lines=(0, 0), singles=(0, 0) if number in empty[split] else (2, 6)
            )
            cv2.imwrite(str(folder / split / f'{number}.png'), drawn.image)
            for (x0, y0, x1, y1), digit in zip(drawn.boxes.tolist(), drawn.classes.tolist(), strict=True):
                box = {'bbox': [x0, y0, x1 - x0, y1 - y0], 'area': (x1 - x0) * (y1 - y0), 'iscrowd': 0}
                annotations.append({'id': len(annotations) + 1, 'image_id': number, 'category_id': digit, **box})
        coco = {
            'images': [{'id': number, 'file_name': f'{number}.png', 'width': 64, 'height': 64} for number in range(count)],
            'categories': [{'id': digit, 'name': name} for digit, name in enumerate(DIGITS)],
            'annotations': annotations,
        }
        (folder / f'{split}.json').write_text(json.dumps(coco))
