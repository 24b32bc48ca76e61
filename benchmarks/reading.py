"""A page read by Phalanx and by rapidocr, with the same weights, on one core, taking turns.

    pip install rapidocr-onnxruntime==1.4.4
    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/reading.py det.onnx rec.onnx [--rounds 5]

The two files are exports of the published weights in that package: docs/reading.md has the commands. Both see the page in its
own size, 3000 x 2000. rapidocr reads six lines at once, as it does by default, and one at a time, as its results do not depend
on each other then.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np

from phalanx import Reader
from phalanx.data.samples import Draw
from phalanx.families.text_detection.data.drawn_pages import DrawnPages
from phalanx.runtime import load

SIZE, LINES, HEIGHTS = (2000, 3000), (60, 60), (24.0, 48.0)


def main() -> None:
    parser = argparse.ArgumentParser(description='A page read by Phalanx and by rapidocr with the same weights.')
    parser.add_argument('det', type=Path)
    parser.add_argument('rec', type=Path)
    parser.add_argument('--rounds', type=int, default=5)
    given = parser.parse_args()
    from rapidocr_onnxruntime import RapidOCR

    cv2.setNumThreads(1)
    page, _ = DrawnPages(page_size=SIZE, lines=LINES, heights=HEIGHTS, degrees=5).split('eval').read(Draw(0))
    theirs = np.ascontiguousarray(page[..., ::-1])
    ours = Reader(load(given.det, threads=1), load(given.rec, threads=1))
    options: dict[str, Any] = {'intra_op_num_threads': 1, 'max_side_len': max(SIZE)}
    six, one = RapidOCR(**options), RapidOCR(**options, rec_batch_num=1)
    ways: dict[str, Callable[[], set[str]]] = {
        'phalanx': lambda: {line.text for line in ours(page)},
        'rapidocr, six lines at once': lambda: {text for _, text, _ in six(theirs, use_cls=False)[0]},
        'rapidocr, line by line': lambda: {text for _, text, _ in one(theirs, use_cls=False)[0]},
    }
    texts = {name: way() for name, way in ways.items()}  # also warms up
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - begin)
    for name, seconds in times.items():
        print(
            json.dumps(
                {
                    'reader': name,
                    'seconds': round(median(seconds), 2),
                    'of phalanx': round(median(seconds) / median(times['phalanx']), 2),
                    'texts': len(texts[name]),
                    'texts as phalanx': len(texts[name] & texts['phalanx']),
                }
            )
        )


if __name__ == '__main__':
    main()
