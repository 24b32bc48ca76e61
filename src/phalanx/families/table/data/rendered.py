"""Synthetic tables of words and numbers that come with the package, rendered on demand.

A table depends on (seed, split, index) alone. Shapes: R rows, C columns, N cells, H, W of the image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.data.samples import Draw, GeneratedSource, Image, Rng, Split
from phalanx.families.table.annotation import Cell, Table
from phalanx.families.table.tokens import Vocabulary

Grey = npt.NDArray[np.uint8]  # [h, w]

FACES = (cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_COMPLEX, cv2.FONT_HERSHEY_TRIPLEX)
SYLLABLES = ('al', 'be', 'cor', 'du', 'en', 'fi', 'gra', 'ho', 'is', 'ka', 'lu', 'mo', 'ne', 'or', 'pa', 'ri', 'so', 'ta', 'vi')
RULES = ('grid', 'lines', 'booktabs', 'none')  # around every cell, below every row, around header and table, nowhere
ALIGNMENTS = (0.0, 0.5, 1.0)  # share of the free space to the left of a text


@dataclass(frozen=True, kw_only=True)
class RenderedTables:
    """Tables with a header, `rows` and `columns` (minimum, maximum), some cells with spans, some empty.

    Rules, alignment, font, spacing and colours vary.
    """

    train_tables: int = 4000
    eval_tables: int = 200
    rows: tuple[int, int] = (2, 6)
    columns: tuple[int, int] = (2, 5)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in (('rows', self.rows), ('columns', self.columns)):
            if not 1 <= least <= most <= 10:
                raise ValueError(f'data.{name} must be a minimum and a maximum between 1 and 10, got {least}, {most}')

    def split(self, split: Split) -> DrawnTables:
        return DrawnTables(split, self.train_tables if split == 'train' else self.eval_tables, self)


@dataclass(frozen=True)
class DrawnTables(GeneratedSource):
    """Source of the rendered tables of one split."""

    kind = 'rendered table'

    options: RenderedTables

    def read(self, draw: Draw) -> tuple[Image, Table]:
        layout, rng = self._plan(draw.index)
        image, boxes = render_table(layout, rng)
        cells = [Cell(tuple(place.text), box) for place, box in zip(layout.places, boxes, strict=True)]
        return image, Table(layout.structure(), tuple(cells))

    def lengths(self, vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
        structures = (self._plan(index)[0].structure() for index in range(len(self)))
        return np.array([vocabulary.length(structure) for structure in structures], np.int64)

    def _plan(self, index: int) -> tuple[Layout, Rng]:
        """Return the layout of a table, and the random generator to render it."""
        rng = self.rng(self.options.seed, index)
        return plan_layout(self.options.rows, self.options.columns, rng), rng


class PlannedCell(NamedTuple):
    """Grid position, spans and text of a cell."""

    row: int
    column: int
    rowspan: int
    colspan: int
    text: str


@dataclass(frozen=True)
class Layout:
    """Layout of a table before rendering."""

    rows: int
    columns: int
    header: int  # number of header rows
    places: list[PlannedCell]  # row by row

    def structure(self) -> tuple[str, ...]:
        """Return the structure tokens, as in PubTabNet."""
        tokens: list[str] = []
        for section, rows in (('thead', range(self.header)), ('tbody', range(self.header, self.rows))):
            tokens.append(f'<{section}>')
            for row in rows:
                cells = [token for place in self.places if place.row == row for token in _cell_tokens(place)]
                # A cell that spans rows is written in its first row only, as in HTML.
                tokens += ['<tr>', *cells, '</tr>']
            tokens.append(f'</{section}>')
        return tuple(tokens)


def _cell_tokens(place: PlannedCell) -> list[str]:
    """Return the structure tokens of a cell."""
    spans = [f' {name}="{span}"' for name, span in (('colspan', place.colspan), ('rowspan', place.rowspan)) if span > 1]
    return ['<td', *spans, '>', '</td>'] if spans else ['<td>', '</td>']


def plan_layout(rows: tuple[int, int], columns: tuple[int, int], rng: Rng) -> Layout:
    """Draw a random layout: texts and spans of the cells."""
    R, C = int(rng.integers(*rows, endpoint=True)), int(rng.integers(*columns, endpoint=True))
    header = 2 if C > 2 and rng.random() < 0.3 else 1
    R += header
    spans: dict[tuple[int, int], tuple[int, int]] = {}  # (row, column) -> (rowspan, colspan)
    if header == 2:  # a title above some columns; headers of the other columns span both rows
        width = int(rng.integers(2, C, endpoint=True)) if C < 10 else 9
        start = int(rng.integers(0, C - width, endpoint=True))
        spans = {(0, column): (2, 1) for column in range(C) if not start <= column < start + width}
        spans[0, start] = (1, width)
    if R - header >= 3 and rng.random() < 0.25:  # one name for a group of rows
        height = int(rng.integers(2, R - header - 1, endpoint=True))
        spans[int(rng.integers(header, R - height, endpoint=True)), 0] = (height, 1)
    # Each column has one kind of content.
    kinds = [0, *rng.integers(0, len(CONTENTS), C - 1)]  # the first column holds names
    covered: set[tuple[int, int]] = set()
    places = []
    for row in range(R):
        for column in range(C):
            if (row, column) in covered:
                continue
            height, width = spans.get((row, column), (1, 1))
            covered |= {(row + y, column + x) for y in range(height) for x in range(width)}
            kind = 0 if row < header else kinds[column]
            is_empty = (height, width) == (1, 1) and rng.random() < 0.08
            places.append(PlannedCell(row, column, height, width, '' if is_empty else CONTENTS[kind](rng)))
    return Layout(R, C, header, places)


def _word(rng: Rng) -> str:
    return ''.join(SYLLABLES[number] for number in rng.integers(0, len(SYLLABLES), rng.integers(1, 4))).capitalize()


def _integer(rng: Rng) -> str:
    return str(rng.integers(0, 10 ** int(rng.integers(1, 5))))


def _decimal(rng: Rng) -> str:
    return f'{rng.uniform(0, 100):.{rng.integers(1, 3)}f}'


def _share(rng: Rng) -> str:
    return f'{rng.integers(0, 101)}%'


CONTENTS = (_word, _integer, _decimal, _share)


def render_table(layout: Layout, rng: Rng) -> tuple[Image, list[tuple[float, float, float, float] | None]]:
    """Render the table; return the image [H, W, 3] and the box of the ink per cell, None for empty cells."""
    # Texts first: their sizes determine the grid.
    face, scale = int(rng.choice(FACES)), rng.uniform(0.4, 0.65)
    inks = [_ink(place.text, face, scale) for place in layout.places]
    pad_x, pad_y = int(rng.integers(4, 13)), int(rng.integers(3, 8))
    xs, ys = _grid(layout, inks, pad_x, pad_y, margin=int(rng.integers(4, 12)))
    paper, ink_colour, rule_colour = rng.integers(225, 256, 3), rng.integers(0, 90, 3), rng.integers(60, 190, 3)
    picture = np.full((ys[-1] + ys[0], xs[-1] + xs[0], 3), paper, np.float32)
    if rng.random() < 0.3:
        picture[ys[0] : ys[layout.header], xs[0] : xs[-1]] -= rng.uniform(10, 40)  # a shaded header
    _draw_rules(picture, layout, xs, ys, rule_colour, str(rng.choice(RULES)))
    alignments = rng.choice(ALIGNMENTS, layout.columns)
    boxes: list[tuple[float, float, float, float] | None] = []
    for place, ink in zip(layout.places, inks, strict=True):
        (left, right), (top, bottom) = _extent(place, xs, ys)
        h, w = ink.shape
        alignment = alignments[place.column] if place.colspan == 1 else 0.5  # cells over several columns are centred
        x = left + pad_x + round((right - left - 2 * pad_x - w) * alignment)
        y = (top + bottom - h) // 2
        # Blend the ink over the paper in place (`under` is a view).
        under = picture[y : y + h, x : x + w]
        under += ink[..., None] / np.float32(255) * (ink_colour - under)
        boxes.append((x, y, x + w, y + h) if place.text else None)
    grain = int(rng.integers(0, 10))
    picture += rng.integers(-grain, grain, picture.shape[:2], np.int8, endpoint=True)[..., None]
    return picture.clip(0, 255).astype(np.uint8), boxes


def _ink(text: str, face: int, scale: float) -> Grey:
    """Render a text as ink coverage per pixel, 0 to 255, cropped to the text; [0, 0] for no text."""
    (width, height), below = cv2.getTextSize(text, face, scale, 1)
    # Some room around the text: the ink may exceed the measured size.
    canvas = np.zeros((height + 2 * below + 4, width + 8), np.uint8)
    cv2.putText(canvas, text, (4, height + below), face, scale, 255, 1, cv2.LINE_AA)
    x, y, w, h = cv2.boundingRect(canvas)
    return canvas[y : y + h, x : x + w]


def _grid(layout: Layout, inks: list[Grey], pad_x: int, pad_y: int, margin: int) -> tuple[list[int], list[int]]:
    """Return the edges of columns and rows in pixels, [C + 1] and [R + 1]."""
    # Single columns first; a spanning cell widens its last column if needed.
    widths = [2 * pad_x + 4] * layout.columns
    for place, ink in sorted(zip(layout.places, inks, strict=True), key=lambda pair: pair[0].colspan):
        columns = range(place.column, place.column + place.colspan)
        widths[columns[-1]] += max(0, ink.shape[1] + 2 * pad_x - sum(widths[column] for column in columns))
    height = max(ink.shape[0] for ink in inks) + 2 * pad_y
    xs = (margin + np.cumsum([0, *widths])).tolist()
    ys = (margin + height * np.arange(layout.rows + 1)).tolist()
    return xs, ys


def _extent(place: PlannedCell, xs: list[int], ys: list[int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (left, right) and (top, bottom) of a cell in pixels."""
    return ((xs[place.column], xs[place.column + place.colspan]), (ys[place.row], ys[place.row + place.rowspan]))


def _draw_rules(
    picture: npt.NDArray[np.float32], layout: Layout, xs: list[int], ys: list[int], colour: npt.NDArray[np.int64], rules: str
) -> None:
    """Draw the rules of one of the styles RULES into `picture`."""
    shade = tuple(colour.tolist())
    # Rules of the whole table first, then those of the cells.
    if rules in ('lines', 'booktabs'):
        for y in (ys[0], ys[layout.header], ys[-1]):
            cv2.line(picture, (xs[0], y), (xs[-1], y), shade, 1 + (rules == 'booktabs'))
    for place in layout.places:
        (left, right), (top, bottom) = _extent(place, xs, ys)
        if rules == 'grid':
            cv2.rectangle(picture, (left, top), (right, bottom), shade)
        elif rules == 'lines':
            cv2.line(picture, (left, bottom), (right, bottom), shade)
        elif place.colspan > 1:  # otherwise its span would be invisible
            cv2.line(picture, (left + 3, bottom), (right - 3, bottom), shade)
