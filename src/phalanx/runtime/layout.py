"""Reading order of the texts of a page: rows, tables with empty cells, columns of prose."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from phalanx.runtime.results import Line

PROSE_LINES = 4  # least number of lines in a column of prose
PROSE_WIDTH = 10  # its least width, in heights of a line
PROSE_FULL = 0.7  # share of the width that at least half of its lines fill


class Placed(NamedTuple):
    """Line of a page turned so that its rows are level; x to the right, y down, in pixels."""

    line: Line
    left: float
    right: float
    middle: float  # y
    height: float


class Column(NamedTuple):
    """Range of x that texts cover, and the numbers of their rows."""

    left: float
    right: float
    rows: set[int]


Row = list[Placed]
Grid = list[list[Line | None]]


class Columns:
    """Columns of the texts in rows that are added one by one.

    `are_clear`: each row has at most one text per column, and rows of several texts alone have the same columns.
    """

    def __init__(self) -> None:
        self.of_all: list[Column] = []  # from the left
        self.of_several: list[Column] = []
        self.are_clear = True

    def add(self, number: int, row: Row) -> bool:
        """Add row `number`; return `are_clear`."""
        for text in row:
            self.are_clear &= enter(self.of_all, text, number)
            if len(row) > 1:
                enter(self.of_several, text, number)
        self.are_clear &= len(self.of_several) in (0, len(self.of_all))
        return self.are_clear


def enter(columns: list[Column], text: Placed, number: int) -> bool:
    """Merge a text of row `number` with the columns that it overlaps; False if one row has several texts in the result."""
    first = bisect_right(columns, text.left, key=attrgetter('right'))
    last = max(first, bisect_left(columns, text.right, key=attrgetter('left')))
    overlapped = columns[first:last]
    *smaller, rows = sorted([{number}, *(column.rows for column in overlapped)], key=len)
    is_clear = True
    for others in smaller:
        is_clear &= rows.isdisjoint(others)
        rows |= others
    left, right = [text.left, *(each.left for each in overlapped)], [text.right, *(each.right for each in overlapped)]
    columns[first:last] = [Column(min(left), max(right), rows)]
    return is_clear


def order_rows(rows: Sequence[Row]) -> Grid:
    """Rows in reading order: columns of prose one after the other, and None for the empty cells of a table."""
    return [row for block in blocks_of(rows) for row in _block_in_order(block)]


def blocks_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Divide rows into blocks in which no text reaches from one column into another."""
    blocks: list[list[Row]] = []
    columns = Columns()
    for number, row in enumerate(rows):
        if columns.add(number, row) and blocks:
            blocks[-1].append(row)
        else:
            blocks.append([row])
            columns = Columns()
            columns.add(number, row)
    return blocks


def columns_of(block: Sequence[Row]) -> list[Column]:
    """Columns of the texts in the rows of a block, from the left."""
    columns: list[Column] = []
    for number, row in enumerate(block):
        for text in row:
            enter(columns, text, number)
    return columns


def _block_in_order(block: Sequence[Row]) -> Grid:
    columns = columns_of(block)
    ends = [column.right for column in columns]
    cells = [{bisect_left(ends, text.right): text for text in row} for row in block]
    if len(columns) == 1 or len(cells[0]) < len(block[0]):  # texts overlap only in a row of its own
        return [[text.line for text in row] for row in block]
    texts: list[list[Placed]] = [[] for _ in columns]
    for row in cells:
        for number, text in row.items():
            texts[number].append(text)
    if all(_is_prose(*pair) for pair in zip(texts, columns, strict=True)):
        return [[text.line] for column in texts for text in column]
    start = next((number for number, row in enumerate(block) if len(row) > 1), len(block))  # of the table, below its titles
    found: Grid = [[text.line for text in row] for row in block[:start]]
    for row in cells[start:]:
        found.append([row[number].line if number in row else None for number in range(len(columns))])
    return found


def _is_prose(texts: Sequence[Placed], column: Column) -> bool:
    """True if texts are the lines of a column of prose: wide, and most of them fill its width."""
    width = column.right - column.left
    full = sum(text.right - text.left >= PROSE_FULL * width for text in texts)
    height = sorted(text.height for text in texts)[len(texts) // 2]
    return len(texts) >= PROSE_LINES and width >= PROSE_WIDTH * height and 2 * full >= len(texts)
