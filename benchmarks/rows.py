"""Rows of drawn delivery notes that stay whole when pages are distorted, read by Phalanx and by rapidocr.

    pip install --no-deps rapidocr
    OMP_NUM_THREADS=1 python benchmarks/rows.py [--pages 4] [--without_rapidocr]

Each page has a title and 13 rows of quantity, article and price; every fourth quantity is empty. A row is kept if its texts,
read without a fault, and no others are in one row; `cells` also asks for the empty cell, which rapidocr does not give.
`characters` is 1 - edit distance / length over all rows. rapidocr gives lines, which are put into rows by their heights.
`seconds` are those of the processor, per page.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import PIL.Image
import PIL.ImageDraw
from rapidfuzz.distance import Levenshtein

from phalanx.data.samples import Image
from phalanx.deploy.read import Reader
from phalanx.families.fonts import find_font, find_fonts
from phalanx.runtime.reading import grid_of

SIZE, ROWS = (1754, 1240), 12  # A4 at 150 dots per inch
WORDS = ('Bolt', 'Washer', 'Flange', 'Screw', 'Bracket', 'Hinge', 'Cable', 'Sleeve', 'Pump', 'Valve', 'Gasket', 'Bearing')


def draw_note(seed: int) -> tuple[Image, list[list[str]]]:
    """A page [H, W, 3] and the texts of its rows."""
    pick = random.Random(seed)
    page = PIL.Image.new('RGB', SIZE[::-1], (255, 255, 255))
    pen, font = PIL.ImageDraw.Draw(page), find_font('a', find_fonts(['a']), 28)
    rows = [['Quantity', 'Article', 'Price']]
    for number in range(ROWS):
        article = f'{pick.choice(WORDS)} {pick.choice(WORDS)} M{pick.randint(2, 30)} x {pick.randint(10, 99)}'
        rows.append(['' if number % 4 == 3 else str(pick.randint(1, 999)), article, f'{pick.uniform(0.01, 99):.2f}'])
    pen.text((420, 200), f'Delivery note {pick.randint(1000, 9999)}', fill=(0, 0, 0), font=font)
    for number, row in enumerate(rows):
        for x, text in zip((150, 400, 950), row, strict=True):
            pen.text((x, 330 + 75 * number), text, fill=(0, 0, 0), font=font)
    return np.asarray(page), rows


def turn(degrees: float) -> Callable[[Image], Image]:
    """Turn clockwise, with the page whole."""

    def turned(page: Image) -> Image:
        H, W = page.shape[:2]
        matrix = cv2.getRotationMatrix2D((W / 2, H / 2), -degrees, 1)
        cos, sin = abs(matrix[0, 0]), abs(matrix[0, 1])
        w, h = int(H * sin + W * cos), int(H * cos + W * sin)
        matrix[:, 2] += (w - W) / 2, (h - H) / 2
        return _uint8(cv2.warpAffine(page, matrix, (w, h), borderValue=(255, 255, 255)))

    return turned


def perspective(page: Image) -> Image:
    H, W = page.shape[:2]
    there = np.array([[0.06 * W, 0.02 * H], [0.95 * W, 0], [W, H], [0, 0.96 * H]], np.float32)
    matrix = cv2.getPerspectiveTransform(np.array([[0, 0], [W, 0], [W, H], [0, H]], np.float32), there)
    return _uint8(cv2.warpPerspective(page, matrix, (W, H), borderValue=(255, 255, 255)))


def curl(page: Image) -> Image:
    """Rows that sink by up to 20 pixels towards the middle, as of an open book."""
    H, W = page.shape[:2]
    x, y = np.meshgrid(np.arange(W, dtype=np.float32), np.arange(H, dtype=np.float32))
    return _uint8(cv2.remap(page, x, y - 20 * np.sin(np.pi * x / W), cv2.INTER_LINEAR, borderValue=(255, 255, 255)))


def noise(page: Image) -> Image:
    return np.clip(page + np.random.default_rng(0).normal(0, 25, page.shape), 0, 255).astype(np.uint8)


def jpeg(page: Image) -> Image:
    return _uint8(cv2.imdecode(cv2.imencode('.jpg', page, [cv2.IMWRITE_JPEG_QUALITY, 20])[1], cv2.IMREAD_COLOR))


def _uint8(page: Any) -> Image:
    return np.asarray(page, np.uint8)


DISTORTIONS: dict[str, Callable[[Image], Image]] = {
    'none': lambda page: page,
    **{f'{degrees:g} degrees': turn(degrees) for degrees in (-20, -10, -3, 1, 3, 10, 20, 90, 180, 180.5, 270)},
    'perspective': perspective,
    'curl': curl,
    'noise': noise,
    'JPEG 20': jpeg,
}


def main() -> None:
    parser = argparse.ArgumentParser(description='Rows of distorted pages, by Phalanx and by rapidocr.')
    parser.add_argument('--pages', type=int, default=4)
    parser.add_argument('--without_rapidocr', action='store_true')
    given = parser.parse_args()
    cv2.setNumThreads(1)
    reader = Reader(threads=1)
    ways: dict[str, Callable[[Image], list[list[str]]]] = {
        'phalanx': lambda page: [[line.text if line else '' for line in row] for row in grid_of(reader(page))]
    }
    if not given.without_rapidocr:
        ways['rapidocr'] = rapid_rows()
    for name, distort in DISTORTIONS.items():
        print(json.dumps({'distortion': name, **{way: measure(read, distort, given.pages) for way, read in ways.items()}}))


def measure(read: Callable[[Image], list[list[str]]], distort: Callable[[Image], Image], pages: int) -> dict[str, float]:
    kept = cells = errors = characters = rows = 0
    seconds = 0.0
    for seed in range(pages):
        page, expected = draw_note(seed)
        page = distort(page)
        begin = time.process_time()
        found = read(page)
        seconds += time.process_time() - begin
        rows += len(expected)
        cells += sum(row in found for row in expected)
        kept += sum(_texts(row) in [_texts(each) for each in found] for row in expected)
        true, text = ('\n'.join(' '.join(_texts(row)) for row in every) for every in (expected, found[1:]))
        errors, characters = errors + Levenshtein.distance(true, text), characters + len(true)
    correct = max(0.0, 1 - errors / characters)
    shares = {'rows': kept / rows, 'cells': cells / rows, 'characters': correct}
    return {**{name: round(share, 3) for name, share in shares.items()}, 'seconds': round(seconds / pages, 2)}


def _texts(row: list[str]) -> list[str]:
    return [text for text in row if text]


def rapid_rows() -> Callable[[Image], list[list[str]]]:
    """Texts of rapidocr in rows: a text whose middle is within half a height of the row before belongs to it."""
    from rapidocr import RapidOCR

    engine: Any = RapidOCR(params={'Global.log_level': 'error', 'EngineConfig.onnxruntime.intra_op_num_threads': 1})

    def read(page: Image) -> list[list[str]]:
        found = engine(np.ascontiguousarray(page[..., ::-1]))
        rows: list[list[tuple[float, str]]] = []
        last, height = -1e9, 0.0
        places = [(box[:, 1].mean(), np.ptp(box[:, 1]), box[:, 0].min()) for box in (found.boxes if found.txts else ())]
        for (middle, high, x), text in sorted(zip(places, found.txts or (), strict=True)):
            if middle - last >= height / 2:
                rows.append([])
                last, height = middle, high
            rows[-1].append((x, text))
        return [[text for _, text in sorted(row)] for row in rows]

    return read


if __name__ == '__main__':
    main()
