"""Tables as pictures and files."""

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from phalanx.data.image import overlay, palette
from phalanx.data.samples import Image
from phalanx.families.table.annotation import Table
from phalanx.families.table.tree import Element, build_tree, to_html
from phalanx.families.writing import Writers, write_crop, write_picture, write_text
from phalanx.runtime.results import Prediction

COLOURS = palette(12)
ROW_HEIGHT = 14  # of a drawn structure, in pixels
MOST_ROWS = 60  # that are drawn: a network that has hardly trained says hundreds
PAPER, HEADER, LINE = (255, 255, 255), (222, 230, 242), (90, 100, 120)
Box = Sequence[float]  # xyxy in pixels


def draw_cells(image: Image, boxes: Iterable[Box], *, numbered: bool = False) -> Image:
    """The image with a coloured box on each cell, and the number of the cell in it if wanted."""
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
    """A cell in the grid that a browser would lay a table out in."""

    row: int
    column: int
    rowspan: int
    colspan: int
    is_header: bool


def lay_out_cells(table: Element) -> list[GridCell]:
    """Where each cell stands: a cell that spans rows takes its columns from the rows below it. Sizes are those asked for."""
    taken: set[tuple[int, int]] = set()
    squares = []
    for row, (cells, is_header) in enumerate(_rows(table)):
        column = 0
        for cell in cells:
            while (row, column) in taken:
                column += 1
            squares.append(GridCell(row, column, cell.rowspan, cell.colspan, is_header))
            taken |= {(row + y, column + x) for y in range(cell.rowspan) for x in range(cell.colspan)}
            column += cell.colspan
    return squares


def _rows(table: Element) -> Iterable[tuple[list[Element], bool]]:
    """The cells of each row, and whether it is of the header."""
    for child in table.children:
        if child.tag == 'td':  # of no row
            yield [child], False
        elif child.tag == 'tr':
            yield child.children, False
        else:
            for below in child.children:
                yield ([below] if below.tag == 'td' else below.children), child.tag == 'thead'


def draw_grid(table: Element, width: int) -> Image:
    """The structure as a drawing [., width, 3] with columns of one width; of its rows the first MOST_ROWS."""
    squares = [square for square in lay_out_cells(table) if square.row < MOST_ROWS]
    rows = max((square.row + 1 for square in squares), default=1)
    columns = max((square.column + square.colspan for square in squares), default=1)
    picture = np.full((rows * ROW_HEIGHT + 9, width, 3), PAPER, np.uint8)
    xs = np.linspace(4, width - 5, columns + 1).round().astype(int).tolist()
    for square in squares:
        bottom = min(square.row + square.rowspan, rows)
        start = xs[square.column], 4 + square.row * ROW_HEIGHT
        end = xs[square.column + square.colspan], 4 + bottom * ROW_HEIGHT
        cv2.rectangle(picture, start, end, HEADER if square.is_header else PAPER, cv2.FILLED)
        cv2.rectangle(picture, start, end, LINE)
    return picture


def draw_structure(image: Image, boxes: Iterable[Box], structure: Sequence[str]) -> Image:
    """The image with its cells, and the structure drawn below it."""
    return np.concatenate([draw_cells(image, boxes), draw_grid(build_tree(structure), image.shape[1])])


def draw_comparison(image: Image, size: tuple[int, int], truth: Table, prediction: Prediction) -> list[tuple[str, Image]]:
    """Captioned pictures: the image, and with it the cells and the structure that are true and those that were said.

    `size` (height, width) is that of the image whose pixels the boxes are in; `image` shows the same at another size.
    """
    image = np.ascontiguousarray(image)
    (h, w), (H, W) = image.shape[:2], size
    scale = np.array([w / W, h / H, w / W, h / H])
    true_boxes = [np.array(box) * scale for box in truth.boxes]
    return [
        ('image', image),
        ('truth', draw_structure(image, true_boxes, truth.structure)),
        ('prediction', draw_structure(image, prediction.boxes * scale, prediction.structure)),
    ]


def draw_prediction(image: Image, prediction: Prediction) -> Image:
    """The image with the cells that are said, and their numbers."""
    return draw_cells(image, prediction.boxes, numbered=True)


def write_html(prediction: Prediction, image: Image, stem: Path) -> list[Path]:
    return write_text(stem, '.html', to_html(build_tree(prediction.structure)) + '\n')


def write_json(prediction: Prediction, image: Image, stem: Path) -> list[Path]:
    """The HTML, the box of each cell in its order, and the mean probability of a token."""
    said = {
        'html': to_html(build_tree(prediction.structure)),
        'boxes': [[round(value, 2) for value in box] for box in prediction.boxes.tolist()],
        'score': prediction.score,
    }
    return write_text(stem, '.json', json.dumps(said, ensure_ascii=False) + '\n')


def write_crops(prediction: Prediction, image: Image, stem: Path) -> list[Path]:
    """Each cell cut out, with its number in the name: `table_cell001.jpg`."""
    boxes = enumerate(prediction.boxes.clip(0).tolist(), 1)
    return [file for number, box in boxes for file in write_crop(stem, f'_cell{number:03}.jpg', image, box)]


def write_pictures(prediction: Prediction, image: Image, stem: Path) -> list[Path]:
    """The image with its cells, and a page with it and the table side by side."""
    (cells,) = write_picture(stem, '_cells.jpg', draw_prediction(image, prediction))
    return [cells, *write_text(stem, '_page.html', _page(prediction, stem.name, cells.read_bytes()))]


WAYS = {'html': write_html, 'json': write_json, 'crops': write_crops, 'pictures': write_pictures}
WRITERS = Writers(draw_prediction, WAYS, default=('html', 'pictures'))


def _page(prediction: Prediction, title: str, picture: bytes) -> str:
    """The picture, and beside it the table with the numbers of its cells. It asks for nothing and runs nothing."""
    numbered = build_tree(prediction.structure, [str(number + 1) for number in range(len(prediction.boxes))])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; style-src \'unsafe-inline\'">'
        f'<title>{escape(title)}</title><style>{CSS}</style></head><body><h1>{escape(title)}</h1>'
        f'<p>{len(prediction.boxes)} cells, probability of a token {prediction.score:.3f}</p><main>'
        f'<img alt="the image with its cells" src="data:image/jpeg;base64,{base64.b64encode(picture).decode()}">'
        f'<div>{to_html(numbered)}</div></main></body></html>\n'
    )


CSS = """
:root{color-scheme:light dark;font:14px/1.5 system-ui,sans-serif}body{margin:24px}h1{font-size:18px;margin:0}
p{margin:2px 0 16px;opacity:.7}main{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:24px}
main>*{min-width:0;align-self:start}img{max-width:100%;height:auto}div{overflow:auto}
table{border-collapse:collapse}td{border:1px solid #8884;padding:3px 10px;font-size:12px}thead td{background:#8882}
"""
