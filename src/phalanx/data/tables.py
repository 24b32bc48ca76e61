"""Annotation of a table in a line of PubTabNet, for the data sets of recipes and for `phalanx new`."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from phalanx.data.checks import AnnotationError
from phalanx.data.shapes import Box

CELL_STARTS = ('<td>', '<td', '<td></td>')  # tokens that begin a cell: plain, with spans, merged


class TableCell(NamedTuple):
    tokens: tuple[str, ...]
    box: Box | None  # x0, y0, x1, y1 in pixels; None where the annotation has none
    corners: tuple[float, ...] | None  # x, y of four points, where the annotation has these


def parse_annotation(annotation: dict[str, Any], where: str) -> tuple[tuple[str, ...], list[TableCell]]:
    """The tokens of the structure and the cells of `html`. Raises AnnotationError, beginning with `where`."""
    try:
        return _parse_html(annotation['html'])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f'there is no {error}' if isinstance(error, KeyError) else str(error)
        raise AnnotationError(f'{where}: its annotation cannot be used: {reason}') from None


def _parse_html(html: dict[str, Any]) -> tuple[tuple[str, ...], list[TableCell]]:
    cells = []
    for cell in html['cells']:
        # Cells without text have no box in PubTabNet; a box that other tools write there is ignored.
        has_box = cell['tokens'] and 'bbox' in cell
        cells.append(TableCell(tuple(cell['tokens']), *(_parse_box(cell['bbox']) if has_box else (None, None))))
    structure = tuple(html['structure']['tokens'])
    if not all(isinstance(token, str) for token in structure):
        raise TypeError('a token of the structure is not text')
    if odd := [token for token in structure if token.startswith('<td') and token not in CELL_STARTS]:
        raise ValueError(
            f'its token {odd[0][:80]!r} is none of PubTabNet, where a cell with spans is <td, one token a span, and >'
        )
    if (count := sum(token in CELL_STARTS for token in structure)) != len(cells):
        raise ValueError(f'its structure has {count} cells, but {len(cells)} are described')
    return structure, cells


def _parse_box(numbers: Sequence[Any]) -> tuple[Box, tuple[float, ...] | None]:
    """Return the box and, from eight numbers or four points, the corners of a cell. Raises TypeError, ValueError."""
    place = tuple(float(number) for point in numbers for number in (point if isinstance(point, list) else (point,)))
    if not all(map(math.isfinite, place)):  # Python's JSON reader accepts NaN
        raise ValueError(f'the box {place} has a coordinate that is not a number')
    if len(place) == 8:
        x, y = place[::2], place[1::2]
        return (min(x), min(y), max(x), max(y)), place
    if len(place) not in (4, 5):  # the fifth is a class in SynthTabNet: whether there is a text
        raise ValueError(f'the box {place} has {len(place)} numbers, where x0, y0, x1, y1 are expected')
    x0, y0, x1, y1 = place[:4]
    return (x0, y0, x1, y1), None
