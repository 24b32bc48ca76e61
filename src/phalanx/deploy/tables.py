"""Tables on pages: a layout network finds them, a table network gives their structure, and lines fill their cells."""

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.data.image import AnImage
from phalanx.data.samples import Image
from phalanx.deploy.read import Model, identify, load_page, name_model, open_model
from phalanx.deploy.words import words_of
from phalanx.families.table.draw import lay_out_cells
from phalanx.families.table.tree import build_tree, to_html
from phalanx.families.writing import write_text
from phalanx.runtime.model import Model as Deployed
from phalanx.runtime.reading import angle_of_page
from phalanx.runtime.results import Found, Line, Outline, Prediction
from phalanx.system.errors import RequestError
from phalanx.weights.readers import choose_tables

Floats = npt.NDArray[np.float64]
TABLE = 'table'  # class of a layout network
WHOLE = 'page'  # value of --layout: each page is one table
LEVEL = math.radians(0.5)  # a slope up to this is left: corners of texts are rounded to pixels


@dataclass(frozen=True)
class PageCell:
    """Cell of a table; row and column count from 0."""

    row: int
    column: int
    rowspan: int
    colspan: int
    is_header: bool
    text: str
    points: Outline  # around its text, as the network predicts it


@dataclass(frozen=True)
class PageTable:
    """Table on a page; points in pixels of the page."""

    score: float  # mean probability of the tokens of its structure
    points: Outline
    html: str
    structure: tuple[str, ...]  # tokens; they need not be HTML
    cells: tuple[PageCell, ...]


class TableReader:
    """Reader of tables: `reader(page, lines)` is the list of `PageTable` of a page whose lines a `Reader` has read.

    `layout` finds tables: a model of detection with a class `table`, or a value of `--layout`; `page`: each page is one table.
    `table` gives their structure: a model of tables, or a value of `--table`. By default they are PP-Structure's, of installed
    packages (`choose_tables`).
    """

    def __init__(
        self,
        layout: Model | str | Path | None = None,
        table: Model | str | Path | None = None,
        *,
        device: str = 'auto',
        threads: int = 0,
    ) -> None:
        """Load the models. Raises RequestError for a wrong file or family, ConfigError or CheckpointError."""
        if layout is None or table is None:
            default_layout, default_table = choose_tables(with_layout=layout is None)
            layout, table = layout or default_layout, table or default_table
        self.table = open_model('table', table, device, threads)
        # A blank table shows whether the network reports places of cells at all.
        if self.table(np.full((32, 32, 3), 255, np.uint8)).boxes is None:
            raise RequestError(f'--table {table}: was trained without boxes of cells, so their texts cannot be assigned')
        self.names = [name_model(table, self.table)]
        self.layout: Model | None = None
        if layout != WHOLE:
            assert layout is not None
            self.layout = open_model('layout', layout, device, threads)
            self.names.insert(0, name_model(layout, self.layout))
            guide = self.layout.guide if isinstance(self.layout, Deployed) else None
            classes = guide['reading']['classes'] if guide else self.layout.class_names  # type: ignore[union-attr]
            if TABLE not in classes:
                raise RequestError(f'--layout {layout}: has no class named {TABLE}: it has {", ".join(classes)}')

    @property
    def identity(self) -> list[str]:
        """Models on which the tables of a page depend; the hash of a file stands for its content."""
        return identify(self.names)

    def __call__(self, page: AnImage, lines: Sequence[Line]) -> list[PageTable]:
        """Read the tables of a page, [H, W, 3] uint8 RGB or a path. Raises ValueError, and SampleError for a bad file."""
        return tables_of(load_page(page), lines, self.layout, self.table)


def tables_of(
    page: Image,
    lines: Sequence[Line],
    find: Callable[[Image], Sequence[Found]] | None,
    recognise: Callable[[Image], Prediction],
) -> list[PageTable]:
    """Tables of a page [H, W, 3] uint8 RGB whose `lines` were read, from the top.

    `find` detects layout, of which tables count; None: the whole page is one table. `recognise` gives the structure of the
    image of a table. The page is turned first so that its lines are level. A line belongs to the cell that it overlaps most,
    or the nearest one; a line across several cells is divided between words.
    """
    level, to_level = turn_level(page, lines)
    back = np.asarray(cv2.invertAffineTransform(to_level), np.float64)
    h, w = level.shape[:2]
    boxes = [found.box for found in find(level) if found.name == TABLE] if find else [(0.0, 0.0, float(w), float(h))]
    texts = [(line, box_of(move(line.points, to_level))) for line in lines]
    tables = []
    for box in sorted(boxes, key=lambda box: box[1]):
        # A box may cut off letters at its edges: extend it around the lines whose centre is inside.
        own = [(line, text) for line, text in texts if is_inside(text, box)]
        x0, y0, x1, y1 = enclose([np.array(box), *(text for _, text in own)]).clip(0, [w, h, w, h])
        left, top = int(x0), int(y0)
        cut = np.ascontiguousarray(level[top : math.ceil(y1), left : math.ceil(x1)])
        prediction = recognise(cut)
        assert prediction.boxes is not None  # TableReader refuses other networks
        cells = prediction.boxes + np.array([left, top, left, top], np.float32)
        contents = fill_cells(cells, own, to_level)
        tree = build_tree(prediction.structure, contents)
        tables.append(
            PageTable(
                prediction.score,
                corners(np.array([x0, y0, x1, y1]), back),
                to_html(tree),
                prediction.structure,
                tuple(
                    PageCell(*place, text, corners(cell, back))
                    for place, text, cell in zip(lay_out_cells(tree), contents, cells, strict=True)
                ),
            )
        )
    return tables


def turn_level(page: Image, lines: Sequence[Line]) -> tuple[Image, Floats]:
    """Turn a page so that its lines are level and upright; returns it with the matrix [2, 3] that moves points there."""
    quarter, slope = angle_of_page([line.points for line in lines]) if lines else (0, 0.0)
    if quarter == 0 and abs(slope) <= LEVEL:
        return page, np.eye(2, 3)
    H, W = page.shape[:2]
    angle = quarter * math.pi / 2 + slope
    matrix = np.array([[math.cos(angle), math.sin(angle), 0], [-math.sin(angle), math.cos(angle), 0]])
    # All of the page stays visible.
    x0, y0, x1, y1 = box_of(move(((0, 0), (W, 0), (W, H), (0, H)), matrix))
    matrix[:, 2] -= x0, y0
    size = math.ceil(x1 - x0), math.ceil(y1 - y0)
    level = cv2.warpAffine(page, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return level.astype(np.uint8, copy=False), matrix


def fill_cells(cells: npt.NDArray[np.float32], lines: Sequence[tuple[Line, Floats]], to_level: Floats) -> list[str]:
    """Texts of `cells` [n, 4] xyxy, from lines in reading order with their boxes."""
    contents: list[list[str]] = [[] for _ in cells]
    if not len(cells):
        return []
    widths = (cells[:, 2] - cells[:, 0]).clip(1)
    for line, box in lines:
        overlap = overlaps(cells, box)
        # Texts of neighbouring cells that were read as one line cover most of the width of each.
        covered = (overlap.any(1)) & (overlap[:, 0] > 0.5 * widths) & (overlap[:, 1] > 0.5 * (box[3] - box[1]))
        pieces = words_of(line) if covered.sum() > 1 else [(line.text, line.points)]
        for text, points in pieces:
            contents[nearest(cells, box_of(move(points, to_level)))].append(text)
    return [' '.join(content) for content in contents]


def overlaps(cells: npt.NDArray[np.float32], box: Floats) -> Floats:
    """Width and height [n, 2] that a box shares with each of `cells` [n, 4]; negative: the distance."""
    sides: Floats = np.minimum(cells[:, 2:], box[2:]) - np.maximum(cells[:, :2], box[:2])
    return sides


def nearest(cells: npt.NDArray[np.float32], box: Floats) -> int:
    """The cell with the greatest IoU, else the nearest one."""
    sides = overlaps(cells, box)
    shared = sides.clip(0).prod(1)
    if shared.any():
        areas = (cells[:, 2:] - cells[:, :2]).clip(0).prod(1)
        return int(np.argmax(shared / (areas + (box[2:] - box[:2]).prod() - shared).clip(1e-6)))
    return int(np.argmin(np.hypot(*(-sides).clip(0).T)))


def move(points: Sequence[Sequence[float]], matrix: Floats) -> Floats:
    """Move points [n, 2] by an affine matrix [2, 3]."""
    moved: Floats = np.array(points, np.float64) @ matrix[:, :2].T + matrix[:, 2]
    return moved


def box_of(points: Floats) -> Floats:
    """The box [4] xyxy around points [n, 2]."""
    return np.concatenate([points.min(0), points.max(0)])


def enclose(boxes: Sequence[Floats]) -> Floats:
    """The box [4] around boxes."""
    stacked = np.stack(boxes)
    return np.concatenate([stacked[:, :2].min(0), stacked[:, 2:].max(0)])


def is_inside(text: Floats, box: Sequence[float]) -> bool:
    """True if the centre of a text is within a box."""
    x, y = ((text[:2] + text[2:]) / 2).tolist()
    return bool(box[0] <= x <= box[2] and box[1] <= y <= box[3])


def corners(box: npt.NDArray[np.floating], matrix: Floats) -> Outline:
    """The four corners of a box, clockwise from its upper left, moved by `matrix`."""
    x0, y0, x1, y1 = box.tolist()
    return tuple((round(x, 1), round(y, 1)) for x, y in move(((x0, y0), (x1, y0), (x1, y1), (x0, y1)), matrix).tolist())


def write_tables(tables: Sequence[PageTable], stem: Path) -> list[Path]:
    """Write `stem`_tables.html and _tables.json with all tables of a page, and _table01.csv and so on. Raises OSError."""
    title = escape(stem.name)
    page = ''.join(f'{table.html}\n' for table in tables)
    files = write_text(
        stem, '_tables.html', f'<!doctype html><html><meta charset="utf-8"><title>{title}</title>\n{page}</html>\n'
    )
    files += write_text(stem, '_tables.json', json.dumps([asdict(table) for table in tables], ensure_ascii=False, indent=1))
    for number, table in enumerate(tables, 1):
        files += write_text(stem, f'_table{number:02}.csv', as_csv(table))
    return files


def as_csv(table: PageTable) -> str:
    """Table as CSV; a cell with spans has its text at its upper left, and is empty elsewhere."""
    rows = max((cell.row + cell.rowspan for cell in table.cells), default=0)
    columns = max((cell.column + cell.colspan for cell in table.cells), default=0)
    grid = [[''] * columns for _ in range(rows)]
    for cell in table.cells:
        grid[cell.row][cell.column] = cell.text
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerows(grid)
    return text.getvalue()
