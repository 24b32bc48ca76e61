"""Pages read by Phalanx and by rapidocr, with the same weights, on one core, taking turns.

    pip install rapidocr-onnxruntime==1.4.4
    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/reading.py det.onnx rec.onnx [--rounds 5]
    OMP_NUM_THREADS=1 python benchmarks/reading.py det.onnx rec.onnx --pages scans/*.jpg --rounds 0

The two files are exports of the published weights in that package: docs/reading.md has the commands. Without --pages, it is a
drawn page of 3000 x 2000, which all see in its own size. rapidocr reads six lines at once, as it does by default, and one at a
time, as its results do not depend on each other then. `lines as phalanx` have the same corners and the same text. Seconds are
those of the processor, which other work on it does not change much. With `--rounds 0` nothing is timed.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np

from phalanx.data.image import read_image
from phalanx.data.samples import Draw, Image
from phalanx.deploy.read import Reader
from phalanx.families.text_detection.data.drawn_pages import DrawnPages
from phalanx.runtime import load

SIZE, LINES, HEIGHTS = (2000, 3000), (60, 60), (24.0, 48.0)

Lines = dict[tuple[int, tuple[tuple[float, ...], ...]], str]  # the text at each page and corners


def main() -> None:
    parser = argparse.ArgumentParser(description='Pages read by Phalanx and by rapidocr with the same weights.')
    parser.add_argument('det', type=Path)
    parser.add_argument('rec', type=Path)
    parser.add_argument('--pages', type=Path, nargs='+', metavar='FILE', help='images (default: a drawn page)')
    parser.add_argument('--rounds', type=int, default=5)
    given = parser.parse_args()
    from rapidocr_onnxruntime import RapidOCR

    # every reader gets one thread and the page in its own size
    cv2.setNumThreads(1)
    pages = [read_image(file) for file in given.pages] if given.pages else [drawn_page()]
    ours = Reader(load(given.det, threads=1), load(given.rec, threads=1))
    options: dict[str, Any] = {'intra_op_num_threads': 1, 'max_side_len': max(SIZE)}
    six, one = RapidOCR(**options), RapidOCR(**options, rec_batch_num=1)
    ways: dict[str, Callable[[], Lines]] = {
        'phalanx': lambda: {(n, line.points): line.text for n, page in enumerate(pages) for line in ours(page)},
        'rapidocr, six lines at once': lambda: theirs(six, pages),
        'rapidocr, line by line': lambda: theirs(one, pages),
    }
    lines = {name: way() for name, way in ways.items()}  # also warms up
    # processor time of each reader, in turns
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, way in ways.items():
            begin = time.process_time()
            way()
            times[name].append(time.process_time() - begin)
    # lines that agree with ours, and the time relative to ours
    for name, found in lines.items():
        row: dict[str, Any] = {'reader': name, 'pages': len(pages), 'lines': len(found)}
        row['lines as phalanx'] = len(found.items() & lines['phalanx'].items())
        if times[name]:
            row['seconds'] = round(median(times[name]), 2)
            row['of phalanx'] = round(median(times[name]) / median(times['phalanx']), 2)
        print(json.dumps(row))


def drawn_page() -> Image:
    page, _ = DrawnPages(page_size=SIZE, lines=LINES, heights=HEIGHTS, degrees=5).split('eval').read(Draw(0))
    return page


def theirs(reader: Any, pages: Sequence[Image]) -> Lines:
    """The texts that an engine of rapidocr, which takes BGR, reads on pages."""
    found: Lines = {}
    for number, page in enumerate(pages):
        for corners, text, _ in reader(np.ascontiguousarray(page[..., ::-1]), use_cls=False)[0] or ():
            found[number, tuple((float(x), float(y)) for x, y in corners)] = text
    return found


if __name__ == '__main__':
    main()
