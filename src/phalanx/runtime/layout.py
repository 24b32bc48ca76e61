"""Reading order of the texts of a page: rows, tables with empty cells, columns of prose."""

from collections.abc import Sequence
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


Row = list[Placed]
Grid = list[list[Line | None]]


def order_rows(rows: Sequence[Row]) -> Grid:
    """Rows in reading order: columns of prose one after the other, and None for the empty cells of a table."""
    return [row for block in blocks_of(rows) for row in _block_in_order(block)]


def blocks_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Divide rows into blocks in which no text reaches from one column into another."""
    blocks: list[list[Row]] = []
    for row in rows:
        if blocks and _has_columns([*blocks[-1], row]):
            blocks[-1].append(row)
        else:
            blocks.append([row])
    return blocks


def _has_columns(block: Sequence[Row]) -> bool:
    """True if each row has at most one text per column, and rows of several texts alone have the same columns."""
    columns, several = columns_of(block), [row for row in block if len(row) > 1]
    if several and len(columns_of(several)) != len(columns):
        return False
    return all(len({_column(text, columns) for text in row}) == len(row) for row in block)


def columns_of(block: Sequence[Row]) -> list[tuple[float, float]]:
    """Ranges of x that texts cover, from the left."""
    columns: list[tuple[float, float]] = []
    for left, right in sorted((text.left, text.right) for row in block for text in row):
        if columns and left < columns[-1][1]:
            columns[-1] = columns[-1][0], max(columns[-1][1], right)
        else:
            columns.append((left, right))
    return columns


def _column(text: Placed, columns: Sequence[tuple[float, float]]) -> int:
    return next(number for number, (left, right) in enumerate(columns) if left <= text.left and text.right <= right)


def _block_in_order(block: Sequence[Row]) -> Grid:
    columns = columns_of(block)
    if len(columns) == 1:
        return [[text.line for text in row] for row in block]
    texts = [[text for row in block for text in row if _column(text, columns) == number] for number in range(len(columns))]
    if all(_is_prose(*pair) for pair in zip(texts, columns, strict=True)):
        return [[text.line] for column in texts for text in column]
    found: Grid = []
    for row in block:
        cells: dict[int, Line | None] = {_column(text, columns): text.line for text in row}
        if len(row) > 1 or any(len(cells) > 1 for cells in found):
            found.append([cells.get(number) for number in range(len(columns))])
        else:  # a title above a table
            found.append([text.line for text in row])
    return found


def _is_prose(texts: Sequence[Placed], column: tuple[float, float]) -> bool:
    """True if texts are the lines of a column of prose: wide, and most of them fill its width."""
    width = column[1] - column[0]
    full = sum(text.right - text.left >= PROSE_FULL * width for text in texts)
    height = sorted(text.height for text in texts)[len(texts) // 2]
    return len(texts) >= PROSE_LINES and width >= PROSE_WIDTH * height and 2 * full >= len(texts)
