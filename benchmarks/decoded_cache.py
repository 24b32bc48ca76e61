"""What a cache of decoded images saves: the input pipeline of each family on one core, with `train.cache` and without.

    python benchmarks/decoded_cache.py [--only FAMILY ...] [--seconds S] [--repeats N] [--folder DIR]

The files are those of `input_pipeline.py`. Both take turns; medians, in time of the processor, so that other load matters less.
With the cache, all was read before. `--folder`: keep it on the disk of that folder, not in memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path

import numpy as np
from input_pipeline import PIPELINES, Prepare, ours

from phalanx.cli.bench.data import one_thread
from phalanx.cli.bench.show import as_text
from phalanx.data.cache import CacheOptions, made, using
from phalanx.engine.loader import Stream


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--only', nargs='+', default=list(PIPELINES), choices=PIPELINES, metavar='FAMILY')
    parser.add_argument('--seconds', type=float, default=1.5, help='at least, of each measurement')
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--folder', type=Path, help='on the disk of this folder')
    given = parser.parse_args()
    options = CacheOptions(gib=0.5, folder=given.folder)
    rows = []
    with one_thread():
        for family in given.only:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(row_of(family, Path(folder), options, given.seconds, given.repeats))
    print(as_text(rows))


def row_of(family: str, root: Path, options: CacheOptions, seconds: float, repeats: int) -> dict[str, str]:
    pipeline = PIPELINES[family]
    files = len(pipeline.make(root, np.random.default_rng(0)))
    prepare_batch = ours(pipeline, root, Stream(files, pipeline.batch, 1, 0, 0, 1))
    cache = made(options)
    with using(cache):
        for step in range(-(-files // pipeline.batch)):
            prepare_batch(step)
    turns = []
    for _ in range(repeats):
        decoding = of_a_sample(prepare_batch, pipeline.batch, seconds)
        with using(cache):
            turns.append((decoding, of_a_sample(prepare_batch, pipeline.batch, seconds)))
    plain, kept = (statistics.median(column) for column in zip(*turns, strict=True))
    ratios = [one / other for one, other in turns]
    return {
        'family': family,
        'without': f'{1000 * plain:.2f} ms a sample',
        'with a cache': f'{1000 * kept:.2f} ms a sample',
        'ratio': f'{statistics.median(ratios):.2f}',
        'of all': f'{min(ratios):.2f}-{max(ratios):.2f}',
    }


def of_a_sample(prepare_batch: Prepare, batch: int, seconds: float) -> float:
    """Seconds of the processor for a sample, over whole batches that take at least so many."""
    begin = time.process_time()
    for step in count(1):
        prepare_batch(step)
        taken = time.process_time() - begin
        if taken >= seconds:
            return taken / step / batch
    raise AssertionError


if __name__ == '__main__':
    main()
