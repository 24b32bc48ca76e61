"""Figures of evaluations as pictures, for experiment trackers; pages draw them as HTML (`charts`)."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image, ImageDraw

from phalanx.data.samples import Image as Array
from phalanx.families.figures import Curves, Figure, Legend, Matrix, Pictures
from phalanx.families.fonts import Font, find_font, find_fonts
from phalanx.report.charts import confusion
from phalanx.report.trackers.interface import Picture

NOT_IN_NAMES = re.compile(r'[^\w /.-]')  # MLflow refuses them
MOST_SAMPLES = 4  # of each kind: a tracker keeps those of every evaluation
WIDEST = 800  # picture of a sample, in pixels
CELL, MARGIN, SIDE = 34, 130, 480  # of a matrix cell, of its names, and of a chart, in pixels
FONT_SIZE = 12
INK, GRID = '#1f2328', '#d0d7de'
COLOURS = ('#0969da', '#cf222e', '#1a7f37', '#9a6700', '#8250df', '#bf3989', '#57606a', '#1b7c83')


def draw_figures(figures: Sequence[Figure]) -> dict[str, Picture]:
    """Return the pictures of figures, by name; a legend of colours has none."""
    drawn: dict[str, Picture] = {}
    for figure in figures:
        name = '' if isinstance(figure, Legend) else NOT_IN_NAMES.sub('', figure.title)
        if isinstance(figure, Matrix):
            drawn[name] = Picture(f'{figure.title}: row truth, column prediction, per cent of the row', draw_matrix(figure))
        elif isinstance(figure, Curves) and any(figure.lines.values()):
            drawn[name] = Picture(f'{figure.title}: {figure.y} over {figure.x}', draw_curves(figure))
        elif isinstance(figure, Pictures):
            rows = [(caption, join(cells).image) for caption, cells in figure.rows[:MOST_SAMPLES]]
            drawn |= {f'{name}/{place}': Picture(caption, image) for place, (caption, image) in enumerate(rows)}
    return drawn


def join(cells: Sequence[tuple[str, Array]]) -> Picture:
    """Join the captioned pictures of a sample side by side."""
    heights, widths = zip(*(image.shape[:2] for _, image in cells), strict=True)
    canvas = np.full((max(heights), sum(widths), 3), 255, np.uint8)
    left = 0
    for _, image in cells:
        canvas[: image.shape[0], left : left + image.shape[1]] = image
        left += image.shape[1]
    shrunk = Image.fromarray(canvas)
    shrunk.thumbnail((WIDEST, WIDEST))
    return Picture(' | '.join(caption for caption, _ in cells), np.asarray(shrunk))


def draw_matrix(figure: Matrix) -> Array:
    """Draw a confusion matrix, the darker the larger the share of its row."""
    matrix = confusion(figure.names, figure.counts)
    canvas = Image.new('RGB', (MARGIN + CELL * len(matrix['names']), MARGIN + CELL * len(matrix['rows'])), 'white')
    draw, font, names = ImageDraw.Draw(canvas), _font(), _fonts(matrix['names'])
    for place, name in enumerate(matrix['names']):
        label = Image.new('RGB', (MARGIN - 10, CELL), 'white')
        ImageDraw.Draw(label).text((0, CELL // 2), _shorten(name), INK, names[name], 'lm')
        canvas.paste(label.rotate(90, expand=True), (MARGIN + CELL * place, 5))
    for row, (name, cells) in enumerate(matrix['rows']):
        y = MARGIN + CELL * row
        draw.text((MARGIN - 8, y + CELL // 2), _shorten(name), INK, names[name], 'rm')
        for column, (share, text, _) in enumerate(cells):
            x, shade = MARGIN + CELL * column, int(255 - 1.75 * share)
            draw.rectangle((x, y, x + CELL - 2, y + CELL - 2), (shade, shade, 255))
            draw.text((x + CELL // 2, y + CELL // 2), text, 'white' if share > 60 else INK, font, 'mm')
    return np.asarray(canvas)


def draw_curves(figure: Curves) -> Array:
    """Draw curves with both axes from their smallest to their largest value, those of shares from 0 to 1."""
    points = [point for line in figure.lines.values() for point in line]
    (left, right), (bottom, top) = (_range([point[axis] for point in points]) for axis in (0, 1))
    shown = list(figure.lines.items())[: len(COLOURS)]
    canvas = Image.new('RGB', (SIDE + 90, SIDE + 70 + 18 * len(shown)), 'white')
    draw, font, names = ImageDraw.Draw(canvas), _font(), _fonts([name for name, _ in shown])
    for tick in range(6):
        x, y = 60 + SIDE * tick / 5, 10 + SIDE * tick / 5
        draw.line(((x, 10), (x, 10 + SIDE)), GRID)
        draw.line(((60, y), (60 + SIDE, y)), GRID)
        draw.text((x, 16 + SIDE), f'{left + (right - left) * tick / 5:.3g}', INK, font, 'ma')
        draw.text((54, y), f'{top - (top - bottom) * tick / 5:.3g}', INK, font, 'rm')
    draw.text((60 + SIDE / 2, 34 + SIDE), f'{figure.y} over {figure.x}', INK, font, 'ma')
    for place, (name, line) in enumerate(shown):
        scaled = [(60 + SIDE * (x - left) / (right - left), 10 + SIDE * (top - y) / (top - bottom)) for x, y in line]
        draw.line(scaled, COLOURS[place], 2)
        draw.text((60, 56 + SIDE + 18 * place), name, COLOURS[place], names[name])
    return np.asarray(canvas)


def name_rows(rows: Sequence[Sequence[tuple[str, Array]]]) -> Iterator[tuple[str, Picture]]:
    """Yield the pictures of samples by name, one per sample."""
    for place, cells in enumerate(rows[:MOST_SAMPLES]):
        if cells:
            yield f'samples/{place}', join(cells)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low >= 0 and high <= 1:
        return 0, 1
    return (low, high) if high > low else (low, low + 1)


def _shorten(name: str) -> str:
    return name if len(name) <= 18 else f'{name[:17]}…'


def _fonts(names: Sequence[str]) -> dict[str, Font]:
    """Return a font for each name that has its letters, if the system has one."""
    fonts = find_fonts(names)
    return {name: find_font(name, fonts, FONT_SIZE) for name in names}


def _font() -> Font:
    return find_font('', None, FONT_SIZE)
