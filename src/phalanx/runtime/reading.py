"""Pages to lines of text: one model finds the texts, another one reads them."""

import math
from collections.abc import Callable, Sequence

import cv2
import numpy as np

from phalanx.runtime.prepare import MAX_SIDE, Image, limited_size, resized
from phalanx.runtime.results import Line, Outline, Reading, TextRegion
from phalanx.runtime.text_detection import quad

UPRIGHT = 1.5  # times its width that a text is high at least to be turned: it was written from top to bottom
STRIP, LOW = 8, 30  # width over height above which, and pixels of height up to which, a page gets a margin: rapidocr's numbers
TOGETHER = 16  # lines that are read at once
SURE = 0.9  # PP-OCRv4 reads 93 % of the lines of receipts with more confidence, and 5 % of them upside down


def lines_of(
    page: Image,
    find: Callable[[Image], Sequence[TextRegion]],
    recognise: Callable[[Sequence[Image]], Sequence[Reading]],
    *,
    threshold: float = 0.5,
    upside_down: bool = False,
    max_side: int = MAX_SIDE,
) -> list[Line]:
    """The lines of a page [H, W, 3] uint8 RGB that are read with a confidence of `threshold` or more, in reading order.

    `find` gives the texts of a page, which it sees with no side longer than `max_side`; `recognise` reads images of single
    lines, cut out of the page as it is. `upside_down`: what is read with less
    confidence than SURE is read the other way up, too; of a text that stands on its head, `points` begin at its own upper left.
    """
    regions = find_within(page, find, max_side)
    outlines = [region.points for region in regions]
    cuts = [cut_out(page, points) for points in outlines]
    readings = _read(cuts, recognise)
    if upside_down:
        doubtful = [place for place, reading in enumerate(readings) if reading.confidence < SURE]
        turned = _read([np.ascontiguousarray(cuts[place][::-1, ::-1]) for place in doubtful], recognise)
        for place, reading in zip(doubtful, turned, strict=True):
            if reading.confidence > readings[place].confidence:
                readings[place], outlines[place] = reading, (*outlines[place][2:], *outlines[place][:2])
    found = [
        Line(reading.text, reading.confidence, region.score, points)
        for reading, region, points in zip(readings, regions, outlines, strict=True)
        if reading.text and reading.confidence >= threshold
    ]
    return [line for row in rows_of(found) for line in row]


def find_within(page: Image, find: Callable[[Image], Sequence[TextRegion]], max_side: int) -> list[TextRegion]:
    """The texts of a page [H, W, 3], in its pixels.

    `find` sees a page with a longer side than `max_side` reduced, to sides that are multiples of 32, and one that is a strip
    (wider than STRIP times its height, or lower than LOW) with black rows above and below, as rapidocr does: detectors were
    trained on pages, and enlarge the shorter side of an image.
    """
    H, W = page.shape[:2]
    h, w = limited_size((H, W), max_side, 'max', max_side) if max(H, W) > max_side else (H, W)
    rows = max(0, max(2 * w // STRIP, 2 * LOW) - h) // 2 if w > STRIP * h or h <= LOW else 0
    if (h, w) == (H, W) and not rows:
        return list(find(page))
    seen = cv2.copyMakeBorder(resized(page, h, w), rows, rows, 0, 0, cv2.BORDER_CONSTANT).astype(np.uint8, copy=False)
    found = []
    for region in find(seen):
        points = tuple((x * W / w, min(max(y - rows, 0.0), h) * H / h) for x, y in region.points)
        if len({y for _, y in points}) > 1:  # else it lies in the black rows
            found.append(TextRegion(region.score, points))
    return found


def _read(cuts: Sequence[Image], recognise: Callable[[Sequence[Image]], Sequence[Reading]]) -> list[Reading]:
    """What is read on each: TOGETHER at once, sorted by their shape, since what is padded to a common width then is little."""
    places = sorted(range(len(cuts)), key=lambda place: cuts[place].shape[1] / cuts[place].shape[0])
    readings = dict[int, Reading]()
    for first in range(0, len(places), TOGETHER):
        some = places[first : first + TOGETHER]
        readings.update(zip(some, recognise([cuts[place] for place in some]), strict=True))
    return [readings[place] for place in range(len(cuts))]


def rows_of(lines: Sequence[Line]) -> list[list[Line]]:
    """`lines` in reading order: rows from the top, each from the left; the other way round where most stand on their heads.

    A line is in the row of the highest one whose middle is less than a quarter of that one's height above its own. Columns are
    not distinguished: they are read across.
    """
    rows: list[list[Line]] = []
    for line in sorted(lines, key=_middle):
        first = rows[-1][0] if rows else None
        if first is not None and _middle(line) - _middle(first) < _height(first) / 4:
            rows[-1].append(line)
        else:
            rows.append([line])
    rows = [sorted(row, key=lambda line: min(x for x, _ in line.points)) for row in rows]
    on_head = sum(len(line.points) == 4 and line.points[1][0] < line.points[0][0] for line in lines)
    return [row[::-1] for row in rows[::-1]] if on_head > len(lines) / 2 else rows


def cut_out(page: Image, points: Outline) -> Image:
    """The part of a page that a text fills, upright, [h, w, 3].

    `points`: its corners clockwise from the upper left; of another outline, the smallest rectangle around it is taken. What is
    UPRIGHT is turned by a quarter, so that its top is at the left.
    """
    corners = np.array(points, np.float32)
    if len(corners) != 4:
        corners = np.asarray(quad(corners, 0), np.float32)
    sides = np.linalg.norm(corners - np.roll(corners, -1, axis=0), axis=1)
    width, height = (max(1, int(max(sides[side], sides[side + 2]))) for side in (0, 1))
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    turn = cv2.getPerspectiveTransform(corners, target)
    cut = cv2.warpPerspective(page, turn, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    if is_upright(width, height):
        cut = np.ascontiguousarray(np.rot90(cut))
    return cut.astype(np.uint8, copy=False)


def is_upright(width: float, height: float) -> bool:
    """Whether a text with these sides was written from top to bottom."""
    return height >= UPRIGHT * width


def angle_of(points: Outline) -> float:
    """How far the text within four corners, clockwise from the upper left, is turned, in degrees counter-clockwise."""
    along, down = (np.subtract(points[place], points[0]) for place in (1, 3))
    turned = -math.degrees(math.atan2(along[1], along[0]))
    return turned - 90 if is_upright(float(np.hypot(*along)), float(np.hypot(*down))) else turned


def _middle(line: Line) -> float:
    return sum(y for _, y in line.points) / len(line.points)


def _height(line: Line) -> float:
    heights = [y for _, y in line.points]
    return max(heights) - min(heights)
