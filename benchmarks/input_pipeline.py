"""The input pipeline of each family on one core, beside the same transforms in plain OpenCV, Pillow and NumPy.

    python benchmarks/input_pipeline.py [--only FAMILY ...] [--seconds S] [--repeats N]

Both read the same files, which are made here: street scenes of 2048 x 1024 (PNG, as OpenCV and as Pillow write it),
photographs of 640 x 480, words of 100 x 32 and tables of 488 x 488 (JPEG). They take turns; medians. Ours ends with collated
bytes, the plain one with normalised float32, since here the device normalises: that takes it a few microseconds a sample, and
a core milliseconds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import plain_transforms as plain
from PIL import Image

from phalanx.bench.data import one_thread, prepare
from phalanx.bench.show import format_text
from phalanx.engine.job import open_job
from phalanx.engine.loader import Stream

Rng = np.random.Generator
Prepare = Callable[[int], None]  # makes the batch of a step


class Pipeline(NamedTuple):
    """A family's recipe on files made in a folder, and what the plain functions take: one thing a file."""

    recipe: str
    setting: str  # {} is the folder
    make: Callable[[Path, Rng], Sequence[Any]]
    plain: Callable[[Any, Rng], Any]
    batch: int


def picture(rng: Rng, width: int, height: int) -> plain.Array:
    """Large and small shapes with some noise, so that files are about as large as those of photographs."""
    coarse, fine = (rng.integers(0, 256, (max(2, height // n), max(2, width // n), 3), np.uint8) for n in (64, 12))
    smooth = [cv2.resize(one, (width, height), interpolation=cv2.INTER_CUBIC) for one in (coarse, fine)]
    noise = rng.normal(0, 2, (height, width, 1))
    return np.clip(0.7 * smooth[0] + 0.3 * smooth[1] + noise, 0, 255).astype(np.uint8)


def by_opencv(path: Path, pixels: plain.Array) -> None:
    cv2.imwrite(str(path), pixels)


def by_pillow(path: Path, pixels: plain.Array) -> None:
    """A PNG with the defaults of zlib and the PNG library: smaller, and longer to decode."""
    Image.fromarray(pixels).save(path)


def street_scenes(root: Path, rng: Rng, write: Callable[[Path, plain.Array], None]) -> list[tuple[Path, Path]]:
    images, labels = (root / kind / 'train' / 'town' for kind in ('leftImg8bit', 'gtFine'))
    images.mkdir(parents=True)
    labels.mkdir(parents=True)
    files = []
    for number in range(6):
        image, label = images / f'{number}_leftImg8bit.png', labels / f'{number}_gtFine_labelTrainIds.png'
        write(image, picture(rng, 2048, 1024))
        classes = rng.integers(0, 19, (16, 32), np.uint8)
        write(label, cv2.resize(classes, (2048, 1024), interpolation=cv2.INTER_NEAREST))
        files.append((image, label))
    return files


def photographs(root: Path, rng: Rng) -> list[tuple[Path, plain.Array]]:
    folder = root / 'train2017'
    folder.mkdir()
    (root / 'annotations').mkdir()
    files, images, annotations = [], [], list[dict[str, Any]]()
    for number in range(24):
        path = folder / f'{number:012}.jpg'
        cv2.imwrite(str(path), picture(rng, 640, 480))
        corners = rng.uniform(0, (500, 340), (7, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(20, 140, (7, 2))], axis=1).astype(np.float32)
        images.append({'id': number, 'file_name': path.name, 'width': 640, 'height': 480})
        for x0, y0, x1, y1 in boxes.tolist():
            box = {'bbox': [x0, y0, x1 - x0, y1 - y0], 'area': (x1 - x0) * (y1 - y0), 'iscrowd': 0}
            annotations.append({'id': len(annotations), 'image_id': number, 'category_id': 1, **box})
        files.append((path, boxes))
    categories = [{'id': 1, 'name': 'person'}]
    content = {'images': images, 'annotations': annotations, 'categories': categories}
    (root / 'annotations' / 'instances_train2017.json').write_text(json.dumps(content))
    return files


def words(root: Path, rng: Rng) -> list[tuple[Path, str]]:
    files = []
    for number in range(200):
        path = root / f'{number}.jpg'
        cv2.imwrite(str(path), picture(rng, 100, 32))
        files.append((path, 'phalanx'))
    (root / 'rec_gt_train.txt').write_text(''.join(f'{path.name}\t{text}\n' for path, text in files))
    return files


def tables(root: Path, rng: Rng) -> list[tuple[Path, str]]:
    """White with dark words: 12 rows of 5 cells."""
    folder = root / 'train'
    folder.mkdir()
    structure = ['<table>', '<tbody>', *(['<tr>', *['<td>', '</td>'] * 5, '</tr>'] * 12), '</tbody>', '</table>']
    boxes = [[90 * column + 10, 38 * row + 10, 90 * column + 70, 38 * row + 30] for row in range(12) for column in range(5)]
    files = []
    for number in range(24):
        image = np.full((488, 488, 3), 255, np.uint8)
        for x0, y0, x1, y1 in boxes:
            image[y0:y1, x0:x1] = picture(rng, x1 - x0, y1 - y0)
        path = folder / f'{number}.jpg'
        cv2.imwrite(str(path), image)
        html = {'structure': {'tokens': structure}, 'cells': [{'tokens': ['w', 'o', 'r', 'd'], 'bbox': box} for box in boxes]}
        files.append((path, json.dumps({'filename': path.name, 'split': 'train', 'html': html})))
    (root / 'PubTabNet_2.0.0.jsonl').write_text(''.join(f'{line}\n' for _, line in files))
    return files


AT = 'data.root={}'
CITYSCAPES = 'pp_liteseg_stdc1_cityscapes_1024x512_scale0.5_160k'
PIPELINES = {
    'segmentation': Pipeline(CITYSCAPES, AT, partial(street_scenes, write=by_opencv), plain.segmentation, batch=4),
    'segmentation_pillow': Pipeline(CITYSCAPES, AT, partial(street_scenes, write=by_pillow), plain.segmentation, batch=4),
    'detection': Pipeline('ppyoloe_crn_s_300e_coco', AT, photographs, plain.detection, batch=8),
    'recognition': Pipeline(
        'rec_mv3_none_bilstm_ctc', 'data={{name: label_files, root: {}}}', words, plain.recognition, batch=64
    ),
    'table': Pipeline('SLANet', AT, tables, plain.table, batch=8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--only', nargs='+', default=list(PIPELINES), choices=PIPELINES, metavar='FAMILY')
    parser.add_argument('--seconds', type=float, default=4, help='at least, of each measurement')
    parser.add_argument('--repeats', type=int, default=3)
    given = parser.parse_args()
    rows = []
    with one_thread():
        for family in given.only:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(row_of(family, Path(folder), given.seconds, given.repeats))
    print(format_text(rows))


def row_of(family: str, root: Path, seconds: float, repeats: int) -> dict[str, str]:
    pipeline = PIPELINES[family]
    files = pipeline.make(root, np.random.default_rng(0))
    stream = Stream(len(files), pipeline.batch, 1, 0, 0, 1)
    sides = (ours(pipeline, root, stream), plainly(pipeline, files, stream))
    for prepare_batch in sides:
        prepare_batch(0)
    measured = [[rate(prepare_batch, pipeline.batch, seconds) for prepare_batch in sides] for _ in range(repeats)]
    own, other = (statistics.median(column) for column in zip(*measured, strict=True))
    ratios = [own / other for own, other in measured]
    return {
        'family': family,
        'Phalanx': f'{own:.1f} samples/s',
        'plain': f'{other:.1f} samples/s',
        'ratio': f'{statistics.median(ratios):.2f}',
        'of all': f'{min(ratios):.2f}-{max(ratios):.2f}',
    }


def ours(pipeline: Pipeline, root: Path, stream: Stream) -> Prepare:
    """The pipeline of a loader worker."""
    job = open_job(pipeline.recipe, [(pipeline.setting.format(root), 'the folder')])
    dataset = job.task.dataset('train')
    return lambda step: prepare(dataset, job.task.collate, stream.share(step))


def plainly(pipeline: Pipeline, files: Sequence[Any], stream: Stream) -> Prepare:
    rng = np.random.default_rng(0)

    def prepare_batch(step: int) -> None:
        pipeline.plain([files[draw.index] for draw in stream.share(step)], rng)

    return prepare_batch


def rate(prepare_batch: Prepare, batch: int, seconds: float) -> float:
    """Samples per second over whole batches that take at least `seconds`."""
    begin = time.perf_counter()
    for step in count(1):
        prepare_batch(step)
        taken = time.perf_counter() - begin
        if taken >= seconds:
            return step * batch / taken
    raise AssertionError


if __name__ == '__main__':
    main()
