"""Reading of pages: detection of texts, recognition of each, and lines in reading order."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.runtime.layout import Grid, Placed, Row, order_rows
from phalanx.runtime.prepare import MAX_SIDE, Image, limited_size, resize
from phalanx.runtime.results import Line, Outline, Reading, TextRegion
from phalanx.runtime.text_detection import quad

UPRIGHT = 1.5  # minimum height / width of a vertical text, which is turned by a quarter
LONG = 2  # minimum width / height of a text whose slope counts
ALIKE = math.radians(2)  # maximum distance from the median of the slopes that are averaged
SAMPLE = 5  # texts read in both directions to find the top of a page
# Slopes to try, as multiples of that of the rectangles: 0 and 0.5, since corners rounded to pixels give a straight page a slope
# of up to half a degree; above 1 because PP-OCRv4's rectangles slant 4 to 8 % less than texts of 10 and 20 degrees.
SLOPES = (0.0, 0.5, 1.0, 1.03, 1.06, 1.09, 1.12)
STRIP, LOW = 8, 30  # a page gets margins above this length / width, and up to this width in pixels: rapidocr's numbers
PIECES, GAP = 4, 8  # pages longer than this times their width are divided, in gaps of this many pixels between texts
TOGETHER = 16  # lines per batch
SURE = 0.9  # PP-OCRv4 reads 93 % of upright lines of receipts with more confidence, and 5 % of those upside down


def lines_of(
    page: Image,
    find: Callable[[Image], Sequence[TextRegion]],
    recognise: Callable[[Sequence[Image]], Sequence[Reading]],
    *,
    threshold: float = 0.5,
    upside_down: bool = False,
    classify: Callable[[Sequence[Image]], Sequence[float]] | None = None,
    max_side: int = MAX_SIDE,
) -> list[Line]:
    """Lines of a page [H, W, 3] uint8 RGB read with a confidence of at least `threshold`, in reading order.

    `find` detects texts on the page, reduced to `max_side` pixels on its longer side; `recognise` reads images of single lines,
    cut out of the full page. A page on its side or upside down is turned first; `points` refer to the original page.
    `upside_down`: lines with a confidence below SURE are also read turned by 180 degrees; so are those that `classify` gives a
    probability above a half of being upside down. The higher confidence counts; `points` of a turned text begin at its own
    upper left.
    """
    regions = find_within(page, find, max_side)
    quarter, sample = quarter_of(page, regions, recognise)
    if quarter:
        turned = np.ascontiguousarray(np.rot90(page, quarter))
        regions = find_within(turned, find, max_side)
        lines = _lines(turned, regions, {}, recognise, classify, threshold=threshold, upside_down=upside_down)
        return [replace(line, points=_turn_back(line.points, quarter, page)) for line in lines]
    return _lines(page, regions, sample, recognise, classify, threshold=threshold, upside_down=upside_down)


def quarter_of(
    page: Image, regions: Sequence[TextRegion], recognise: Callable[[Sequence[Image]], Sequence[Reading]]
) -> tuple[int, dict[Outline, Reading]]:
    """Quarter turns, counter-clockwise, that bring a page upright (0 to 3), and readings of its longest texts as they are.

    A page lies on its side when most of the length of its texts goes from top to bottom. Its longest SAMPLE texts tell where
    the top is: they are read both ways, those of other pages only when they are not SURE, and the higher confidence counts.
    """
    # Horizontal and vertical texts with their lengths, the longest first.
    outlines = [region.points for region in regions if len(region.points) == 4]
    corners = [np.array(points) for points in outlines]
    sides = [(float(np.hypot(*(four[1] - four[0]))), float(np.hypot(*(four[3] - four[0])))) for four in corners]
    across, down = (
        sorted(
            [(max(side), points) for side, points in zip(sides, outlines, strict=True) if is_upright(*side) == upright],
            key=lambda pair: -pair[0],
        )
        for upright in (False, True)
    )
    on_side = sum(length for length, _ in down) > sum(length for length, _ in across)
    sample: list[Outline] = [points for _, points in (down if on_side else across)[:SAMPLE]]
    cuts = [cut_out(page, points) for points in sample]
    readings = dict(zip(sample, read_cuts(cuts, recognise), strict=True))
    one = sum(reading.confidence for reading in readings.values())
    if not on_side and one >= SURE * len(cuts):
        return 0, readings
    # A vertical text may run downwards or upwards, another one be upside down: read both ways.
    turned = [np.ascontiguousarray(cut[::-1, ::-1]) for cut in cuts]
    other = sum(reading.confidence for reading in read_cuts(turned, recognise))
    return (1 if on_side else 0) + (2 if other > one else 0), readings


def _turn_back(points: Outline, quarter: int, page: Image) -> Outline:
    """Map points of `page` turned by 1 to 3 quarters counter-clockwise back to `page`."""
    H, W = page.shape[:2]
    return tuple({1: (W - y, x), 2: (W - x, H - y), 3: (y, H - x)}[quarter] for x, y in points)


def _lines(
    page: Image,
    regions: Sequence[TextRegion],
    known: Mapping[Outline, Reading],
    recognise: Callable[[Sequence[Image]], Sequence[Reading]],
    classify: Callable[[Sequence[Image]], Sequence[float]] | None,
    *,
    threshold: float,
    upside_down: bool,
) -> list[Line]:
    """Lines of an upright page, with the `known` readings; see `lines_of`."""
    outlines = [region.points for region in regions]
    cuts = [cut_out(page, points) for points in outlines]
    new = [place for place, points in enumerate(outlines) if points not in known]
    rest = dict(zip(new, read_cuts([cuts[place] for place in new], recognise), strict=True))
    readings = [rest[place] if place in rest else known[points] for place, points in enumerate(outlines)]
    # Confident readings are upright as a rule: reading only the others again costs little.
    doubtful = {place for place, reading in enumerate(readings) if upside_down and reading.confidence < SURE}
    if classify is not None:
        doubtful |= {place for place, probability in enumerate(classify(cuts)) if probability > 0.5}
    again = read_cuts([np.ascontiguousarray(cuts[place][::-1, ::-1]) for place in sorted(doubtful)], recognise)
    for place, reading in zip(sorted(doubtful), again, strict=True):
        if reading.confidence > readings[place].confidence:
            # Corners begin two further: at the upper left of the turned text.
            readings[place], outlines[place] = reading, (*outlines[place][2:], *outlines[place][:2])
    lines = [
        Line(reading.text, reading.confidence, region.score, points)
        for reading, region, points in zip(readings, regions, outlines, strict=True)
        if reading.text and reading.confidence >= threshold
    ]
    return [line for row in rows_of(lines) for line in row]


def find_within(page: Image, find: Callable[[Image], Sequence[TextRegion]], max_side: int) -> list[TextRegion]:
    """Detect the texts of a page [H, W, 3] with `find`; regions are in pixels of the page.

    A page with a side above `max_side` is first reduced, to sides that are multiples of 32; one that is also more than PIECES
    times as long as wide, such as a receipt, is divided instead, since little would be left of its width. A strip without
    regions is one region: it may be a line that is cut out too tightly for a detector.
    """
    H, W = page.shape[:2]
    regions, is_high = [], H > W
    ends = divide(page, max_side)
    for first, last in zip([0, *ends], ends, strict=False):
        piece = page if len(ends) == 1 else np.ascontiguousarray(page[first:last] if is_high else page[:, first:last])
        x, y = (0, first) if is_high else (first, 0)
        for region in _find_in_piece(piece, find, max_side):
            regions.append(replace(region, points=tuple((px + x, py + y) for px, py in region.points)))
    if not regions and (_margin(H, W) or _margin(W, H)):
        return [TextRegion(0.0, ((0.0, 0.0), (float(W), 0.0), (float(W), float(H)), (0.0, float(H))))]
    return regions


def divide(page: Image, max_side: int) -> list[int]:
    """Ends of the pieces of a page along its longer side; [its length] for a page that is not divided.

    Pieces are at most PIECES times as long as wide, or a quarter of `max_side`, and end between texts if possible.
    """
    long, short = max(page.shape[:2]), min(page.shape[:2])
    if long <= max(max_side, PIECES * short):
        return [long]
    longest = min(max_side, max(PIECES * short, max_side // 4))
    # The ink of a row (or column) is how much its pixels differ; a piece ends in the widest gap of its second half.
    along = page if page.shape[0] > page.shape[1] else page.swapaxes(0, 1)
    ink = np.concatenate([np.ptp(along[first : first + longest], axis=1).max(1) for first in range(0, long, longest)])
    ink = np.convolve(ink, np.ones(min(GAP, longest)), 'same')
    ends = [0]
    while long - ends[-1] > longest:
        half = ends[-1] + longest // 2
        ahead = ink[half : ends[-1] + longest]
        ends.append(half + int(np.flatnonzero(ahead == ahead.min())[-1]))
    return [*ends[1:], long]


def _find_in_piece(page: Image, find: Callable[[Image], Sequence[TextRegion]], max_side: int) -> list[TextRegion]:
    """Detect texts on a page reduced to `max_side`.

    A strip (more than STRIP times as long as wide, or at most LOW pixels wide) gets black margins along its longer sides, up to
    a quarter of its length or 2 * LOW pixels, as in rapidocr: detectors were trained on pages, and enlarge the shorter side of
    an image. Regions in the margins are dropped.
    """
    H, W = page.shape[:2]
    h, w = limited_size((H, W), max_side, 'max', max_side) if max(H, W) > max_side else (H, W)
    rows, columns = _margin(h, w), _margin(w, h)
    prepared = resize(page, h, w)
    if rows or columns:
        margins = (rows, rows, columns, columns)
        prepared = cv2.copyMakeBorder(prepared, *margins, cv2.BORDER_CONSTANT).astype(np.uint8, copy=False)
    regions = []
    # Back to pixels of the page: without the margin, and scaled.
    for region in find(prepared):
        points = [(min(max(x - columns, 0.0), w), min(max(y - rows, 0.0), h)) for x, y in region.points]
        if all(len(set(values)) > 1 for values in zip(*points, strict=True)):  # otherwise it is in a margin
            regions.append(TextRegion(region.score, tuple((x * W / w, y * H / h) for x, y in points)))
    return regions


def _margin(side: int, other: int) -> int:
    """Pixels on both ends of `side` that make a strip of `side` x `other` wide enough for a detector; 0 for a page."""
    return max(0, max(2 * other // STRIP, 2 * LOW) - side) // 2 if other > STRIP * side or side <= LOW else 0


def read_cuts(cuts: Sequence[Image], recognise: Callable[[Sequence[Image]], Sequence[Reading]]) -> list[Reading]:
    """Readings of all cuts, in batches of TOGETHER sorted by aspect ratio, which keeps the padding to a common width small."""
    places = sorted(range(len(cuts)), key=lambda place: cuts[place].shape[1] / cuts[place].shape[0])
    readings = dict[int, Reading]()
    for first in range(0, len(places), TOGETHER):
        batch = places[first : first + TOGETHER]
        readings.update(zip(batch, recognise([cuts[place] for place in batch]), strict=True))
    return [readings[place] for place in range(len(cuts))]


def rows_of(lines: Sequence[Line]) -> list[list[Line]]:
    """`lines` in reading order, as `grid_of` has them, without its empty cells."""
    return [[line for line in row if line is not None] for row in grid_of(lines)]


def grid_of(lines: Sequence[Line]) -> Grid:
    """`lines` in reading order: rows from the top, each from the left, by the direction of `angle_of_page`.

    A line belongs to a row if its centre is less than a quarter of the height of the row's first line below that line's centre;
    less than half of it beside all others of the row, since rows of a curled page bend.
    Rectangles give the slope of texts only roughly, so several are tried (SLOPES): the one with the fewest rows wins, and of
    these the most even one. `order_rows` finds columns of prose, and empty cells of tables, which are None.
    """
    quarter, slope = angle_of_page([line.points for line in lines])
    tried = [_rows(lines, quarter * math.pi / 2 + slope * factor) for factor in SLOPES]
    return order_rows(min(tried, key=lambda found: (len(found[0]), found[1]))[0])


def _rows(lines: Sequence[Line], angle: float) -> tuple[list[Row], float]:
    """Rows of a page whose texts go in the direction `angle` (radians), and their unevenness in pixels."""
    rows: list[Row] = []
    placed = [_place(line, math.cos(angle), math.sin(angle)) for line in lines]
    # From the top: a line joins the current row, or begins the next one.
    for text in sorted(placed, key=lambda text: text.middle):
        below = text.middle - rows[-1][0].middle if rows else math.inf
        if rows and (below < rows[-1][0].height / 4 or (below < rows[-1][0].height / 2 and _is_beside(text, rows[-1]))):
            rows[-1].append(text)
        else:
            rows.append([text])
    unevenness = sum(row[-1].middle - row[0].middle for row in rows)
    return [sorted(row, key=lambda text: text.left) for row in rows], unevenness


def _is_beside(text: Placed, row: Row) -> bool:
    """True if no text of a row is above `text`: rows of a curled page bend by more than lines may differ in height."""
    return all(text.right <= other.left or other.right <= text.left for other in row)


def _place(line: Line, cos: float, sin: float) -> Placed:
    """Place a line by its outline, with x along rows whose direction has this cosine and sine, and y down."""
    xs, ys = [x * cos + y * sin for x, y in line.points], [y * cos - x * sin for x, y in line.points]
    return Placed(line, min(xs), max(xs), sum(ys) / len(ys), max(ys) - min(ys))


def angle_of_page(outlines: Sequence[Outline]) -> tuple[int, float]:
    """Direction of most texts on a page, clockwise from the right: quarter turns, and a rest in radians.

    The quarter turn with the greatest length of text, and within it the mean slope of the texts that are LONG and near the
    median slope. Corners are rounded to pixels, so longer texts give the slope more exactly: weights are squared lengths.
    """
    # Upper and left side of each text with four corners.
    sides = [np.subtract(points[place], points[0]) for points in outlines if len(points) == 4 for place in (1, 3)]
    along, down = np.reshape(sides[::2], (-1, 2)), np.reshape(sides[1::2], (-1, 2))
    lengths, angles = np.hypot(*along.T), np.arctan2(along[:, 1], along[:, 0])
    quarters = np.round(angles / (math.pi / 2)).astype(int) % 4
    # The quarter turn of most texts, weighted by length.
    quarter = int(np.argmax(np.bincount(quarters, lengths, 4)))
    is_long = (quarters == quarter) & (lengths >= LONG * np.hypot(*down.T))
    if not is_long.any():
        return quarter, 0.0
    # Slopes of the long texts relative to that quarter turn; their weighted median, then the mean of those near it.
    slopes, weights = np.arctan2(*np.flip(along @ _quarter_turn(quarter), 1).T)[is_long], lengths[is_long] ** 2
    order = np.argsort(slopes)
    median = slopes[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)]
    is_near = np.abs(slopes - median) <= ALIKE
    return quarter, float(np.average(slopes[is_near], weights=weights[is_near]))


def _quarter_turn(quarter: int) -> npt.NDArray[np.float64]:
    """Matrix [2, 2] that turns points [n, 2] back by `quarter` quarter turns (points @ matrix)."""
    cos, sin = ((1, 0), (0, 1), (-1, 0), (0, -1))[quarter]
    return np.array([[cos, -sin], [sin, cos]], np.float64)


def cut_out(page: Image, points: Outline) -> Image:
    """Cut a text out of a page and rectify it, [h, w, 3].

    `points`: its corners clockwise from the upper left; for other outlines, the smallest rectangle around them. A text at least
    UPRIGHT times as high as wide is turned by a quarter counter-clockwise.
    """
    corners = np.array(points, np.float32)
    if len(corners) != 4:
        corners = np.asarray(quad(corners, 0), np.float32)
    # Opposite sides may differ in perspective: the longer one counts, so that nothing is squeezed.
    sides = np.linalg.norm(corners - np.roll(corners, -1, axis=0), axis=1)
    width, height = (max(1, int(max(sides[side], sides[side + 2]))) for side in (0, 1))
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    turn = cv2.getPerspectiveTransform(corners, target)
    cut = cv2.warpPerspective(page, turn, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    if is_upright(width, height):
        cut = np.ascontiguousarray(np.rot90(cut))
    return cut.astype(np.uint8, copy=False)


def is_upright(width: float, height: float) -> bool:
    """True if a text with these sides was written from top to bottom."""
    return height >= UPRIGHT * width


def angle_of(points: Outline) -> float:
    """Angle of the text within four corners (clockwise from the upper left), in degrees counter-clockwise."""
    along, down = (np.subtract(points[place], points[0]) for place in (1, 3))
    turned = -math.degrees(math.atan2(along[1], along[0]))
    return turned - 90 if is_upright(float(np.hypot(*along)), float(np.hypot(*down))) else turned
