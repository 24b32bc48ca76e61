"""Texts of the cells of a table, read by a recogniser of lines."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import cv2
import numpy as np

from phalanx.data.samples import Image
from phalanx.runtime.reading import read_cuts
from phalanx.runtime.results import Reading

Recognise = Callable[[Sequence[Image]], Sequence[Reading]]  # images of single lines -> readings
MARGIN = 2  # pixels around the ink of a line: recognisers are trained on crops with some paper
LOW = 0.5  # a band of ink below this share of the tallest is an accent or a comma, not a line
FAINT = 32  # difference from the paper, of 255, below which nothing is ink


@runtime_checkable
class CellTask(Protocol):
    """Task whose results have cells; `locates_cells` is False if its recipe does not teach where they are."""

    locates_cells: bool


def read_cells(image: Image, boxes: Sequence[Sequence[float]], recognise: Recognise) -> tuple[str, ...]:
    """Return the text of each cell of a table, its lines joined by blanks; empty for a cell without ink.

    `image` [H, W, 3] uint8 RGB; `boxes` [cells, 4] xyxy in pixels, around the texts; `recognise` reads images of single lines.
    """
    W = image.shape[1]
    lines = [
        (cell, (max(0, round(x0) - MARGIN), top, min(W, round(x1) + MARGIN), bottom))
        for cell, (x0, y0, x1, y1) in enumerate(boxes)
        for top, bottom in find_lines(image[max(0, round(y0)) : max(0, round(y1)), max(0, round(x0)) : max(0, round(x1))], y0)
    ]
    texts: list[list[str]] = [[] for _ in boxes]
    # A dash is read as one if its image is as high as a line of the table.
    height = float(np.median([bottom - top for _, (_, top, _, bottom) in lines])) if lines else 0.0
    cuts = []
    for _, (x0, top, x1, bottom) in lines:
        spare = MARGIN + max(0, round((height - (bottom - top)) / 2))
        cuts.append(np.ascontiguousarray(image[max(0, top - spare) : bottom + spare, x0:x1]))
    for (cell, _), reading in zip(lines, read_cuts(cuts, recognise), strict=True):
        texts[cell].append(reading.text)
    return tuple(' '.join(filter(None, of_cell)) for of_cell in texts)


def find_lines(cell: Image, y0: float = 0) -> list[tuple[int, int]]:
    """Return the lines of a cell [h, w, 3] whose top is at `y0`: (top, bottom) of the bands of rows with ink, from the top."""
    if min(cell.shape[:2]) == 0:
        return []
    # Ink differs from the median, the paper, whichever is darker.
    grey = cv2.cvtColor(cell, cv2.COLOR_RGB2GRAY).astype(np.int16)
    distance = np.abs(grey - int(np.median(grey)))
    if distance.max() < FAINT:
        return []
    has_ink = (distance > distance.max() / 2).any(1)
    edges = np.flatnonzero(np.diff(has_ink, prepend=False, append=False)).tolist()
    bands = list(zip(edges[::2], edges[1::2], strict=True))
    least = LOW * max(bottom - top for top, bottom in bands)
    # Dots, accents and commas join the nearer of the lines above and below.
    while low := [place for place, (top, bottom) in enumerate(bands) if bottom - top < least]:
        place = low[0]
        above = bands[place][0] - bands[place - 1][1] if place else len(cell)
        below = bands[place + 1][0] - bands[place][1] if place + 1 < len(bands) else len(cell)
        upper = place - 1 if above < below else place
        bands[upper : upper + 2] = [(bands[upper][0], bands[upper + 1][1])]
    start = max(0, round(y0))
    return [(start + top, start + bottom) for top, bottom in bands]
