"""A data set in files, and a recipe that trains on it."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

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
