"""Pictures and files of tables."""

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.data.image import overlay, palette
from phalanx.data.samples import Image
from phalanx.families.table.annotation import Table
from phalanx.families.table.tokens import CELLS
from phalanx.families.table.tree import Element, build_tree, to_html
from phalanx.families.writing import Writers, write_crop, write_picture, write_text
from phalanx.runtime.results import Prediction

COLOURS = palette(12)
ROW_HEIGHT = 14  # of a drawn structure, in pixels
MOST_ROWS = 60  # maximum number of drawn rows: an untrained network predicts hundreds
PAPER, HEADER, LINE = (255, 255, 255), (222, 230, 242), (90, 100, 120)
Box = Sequence[float]  # xyxy in pixels


def draw_cells(image: Image, boxes: Iterable[Box], *, numbered: bool = False) -> Image:
    """Return the image with a coloured box per cell; `numbered` adds the number of the cell."""
    # Filled boxes are blended under their outlines, so that the image stays visible.
    lines, areas = image.copy(), image.copy()
    for number, box in enumerate(boxes):
        x0, y0, x1, y1 = (round(value) for value in box)
        colour = tuple(COLOURS[number % len(COLOURS)].tolist())
        cv2.rectangle(areas, (x0, y0), (x1, y1), colour, cv2.FILLED)
        cv2.rectangle(lines, (x0, y0), (x1, y1), colour)
        if numbered:
            cv2.putText(lines, str(number + 1), (x0 + 1, y0 + 9), cv2.FONT_HERSHEY_SIMPLEX, 0.3, colour, 1, cv2.LINE_AA)
    return overlay(lines, areas, 0.25)


class GridCell(NamedTuple):
    """Position of a cell in the layout of a browser."""

    row: int
    column: int
    rowspan: int
    colspan: int
    is_header: bool


def lay_out_cells(table: Element) -> list[GridCell]:
    """Lay out the cells as a browser does: a cell that spans rows takes its columns from the rows below it."""
    occupied: set[tuple[int, int]] = set()
    squares = []
    for row, (cells, is_header) in enumerate(_rows(table)):
        column = 0
        for cell in cells:
            while (row, column) in occupied:
                column += 1
            squares.append(GridCell(row, column, cell.rowspan, cell.colspan, is_header))
            occupied |= {(row + y, column + x) for y in range(cell.rowspan) for x in range(cell.colspan)}
            column += cell.colspan
    return squares


def _rows(table: Element) -> Iterable[tuple[list[Element], bool]]:
    """Yield the cells of each row, and True if it belongs to the header."""
    for child in table.children:
        if child.tag == 'td':  # outside any row
            yield [child], False
        elif child.tag == 'tr':
            yield child.children, False
        else:
            for below in child.children:
                yield ([below] if below.tag == 'td' else below.children), child.tag == 'thead'


def draw_grid(table: Element, width: int) -> Image:
    """Draw the structure [., width, 3] with columns of equal width, up to MOST_ROWS rows."""
    squares = [square for square in lay_out_cells(table) if square.row < MOST_ROWS]
    rows = max((square.row + 1 for square in squares), default=1)
    columns = max((square.column + square.colspan for square in squares), default=1)
    picture = np.full((rows * ROW_HEIGHT + 9, width, 3), PAPER, np.uint8)
    # Columns of equal width: the structure has no measures.
    xs = np.linspace(4, width - 5, columns + 1).round().astype(int).tolist()
    for square in squares:
        bottom = min(square.row + square.rowspan, rows)
        start = xs[square.column], 4 + square.row * ROW_HEIGHT
        end = xs[square.column + square.colspan], 4 + bottom * ROW_HEIGHT
        cv2.rectangle(picture, start, end, HEADER if square.is_header else PAPER, cv2.FILLED)
        cv2.rectangle(picture, start, end, LINE)
    return picture


def draw_structure(image: Image, boxes: Iterable[Box], structure: Sequence[str]) -> Image:
    """Return the image with its cells, and the structure drawn below it."""
    return np.concatenate([draw_cells(image, boxes), draw_grid(build_tree(structure), image.shape[1])])


def draw_comparison(image: Image, size: tuple[int, int], truth: Table, prediction: Prediction) -> list[tuple[str, Image]]:
    """Return captioned pictures: the image, and the cells and structure of truth and prediction.

    Boxes are in pixels of an image of `size` (height, width), of which `image` is a resized copy.
    """
    image = np.ascontiguousarray(image)
    (h, w), (H, W) = image.shape[:2], size
    scale = np.array([w / W, h / H, w / W, h / H])
    true_boxes = [np.array(box) * scale for box in truth.boxes]
    return [
        ('image', image),
        ('truth', draw_structure(image, true_boxes, truth.structure)),
        ('prediction', draw_structure(image, _boxes(prediction) * scale, prediction.structure)),
    ]


def draw_prediction(image: Image, prediction: Prediction) -> Image:
    """Return the image with the predicted cells and their numbers."""
    return draw_cells(image, _boxes(prediction), numbered=True)


def _boxes(prediction: Prediction) -> npt.NDArray[np.float32]:
    """Boxes [cells, 4] to draw; none if the network has not learned them."""
    return np.zeros((0, 4), np.float32) if prediction.boxes is None else prediction.boxes


def write_html(prediction: Prediction, image: Image, stem: Path) -> list[Path]:
    """Write the table as `stem`.html."""
    return write_text(stem, '.html', to_html(build_tree(prediction.structure, prediction.texts)) + '\n')


def write_json(prediction: Prediction, image: Image, stem: Path) -> list[Path]:
    """Write `stem`.json: the HTML, boxes (null if not learned) and texts of cells, and the mean probability of a token."""
    boxes = prediction.boxes
    content = {
        'html': to_html(build_tree(prediction.structure, prediction.texts)),
        'boxes': None if boxes is None else [[round(value, 2) for value in box] for box in boxes.tolist()],
        'score': prediction.score,
        **({'texts': prediction.texts} if prediction.texts else {}),
    }
    return write_text(stem, '.json', json.dumps(content, ensure_ascii=False) + '\n')


def write_crops(prediction: Prediction, image: Image, stem: Path) -> list[Path]:
    """Write a crop per cell, numbered: `table_cell001.jpg`."""
    boxes = enumerate(_boxes(prediction).clip(0).tolist(), 1)
    return [file for number, box in boxes for file in write_crop(stem, f'_cell{number:03}.jpg', image, box)]


def write_pictures(prediction: Prediction, image: Image, stem: Path) -> list[Path]:
    """Write the image with its cells, and an HTML page with image and table side by side."""
    (cells,) = write_picture(stem, '_cells.jpg', draw_prediction(image, prediction))
    return [cells, *write_text(stem, '_page.html', _page(prediction, stem.name, cells.read_bytes()))]


WAYS = {'html': write_html, 'json': write_json, 'crops': write_crops, 'pictures': write_pictures}
WRITERS = Writers(draw_prediction, WAYS, default=('html', 'pictures'))
WITHOUT_PLACES = Writers(draw_prediction, {way: WAYS[way] for way in WAYS if way != 'crops'}, default=('html', 'pictures'))


def _page(prediction: Prediction, title: str, picture: bytes) -> str:
    """Return a page with the picture and the table of cell numbers; it loads nothing and runs no scripts."""
    # Cell numbers in place of texts, unless a recogniser has read them.
    cells = sum(token in CELLS for token in prediction.structure)
    filled = build_tree(prediction.structure, prediction.texts or [str(number + 1) for number in range(cells)])
    unlocated = '' if prediction.boxes is not None else '; where they are was not learned'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; style-src \'unsafe-inline\'">'
        f'<title>{escape(title)}</title><style>{CSS}</style></head><body><h1>{escape(title)}</h1>'
        f'<p>{cells} cells, probability of a token {prediction.score:.3f}{unlocated}</p><main>'
        f'<img alt="the image with its cells" src="data:image/jpeg;base64,{base64.b64encode(picture).decode()}">'
        f'<div>{to_html(filled)}</div></main></body></html>\n'
    )


CSS = """
:root{color-scheme:light dark;font:14px/1.5 system-ui,sans-serif}body{margin:24px}h1{font-size:18px;margin:0}
p{margin:2px 0 16px;opacity:.7}main{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:24px}
main>*{min-width:0;align-self:start}img{max-width:100%;height:auto}div{overflow:auto}
table{border-collapse:collapse}td{border:1px solid #8884;padding:3px 10px;font-size:12px}thead td{background:#8882}
"""
