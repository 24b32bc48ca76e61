"""A census as one HTML file without scripts that needs no network: numbers, tables, pictures."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

import cv2
import numpy as np

from phalanx.cli.data.census import Census, spread
from phalanx.cli.data.tables import Row, class_rows, duplicate_rows, problem_rows, size_rows, verdict
from phalanx.data.image import palette
from phalanx.data.samples import Image
from phalanx.report.page import CSS
from phalanx.report.readable import number

PICTURES = 8  # of each split
WIDTH = 480  # of a picture, in pixels


def page(census: Census, name: str) -> str:
    """The HTML of the census of the data set of the recipe `name`; reads the samples that it shows once more."""
    sections = [
        ('What is wrong', _table(problem_rows(census))),
        ('Worth a look', ''.join(f'<p>{escape(remark)}</p>' for remark in census.remarks())),
        ('Classes', _table(class_rows(census), _colours(census))),
        ('Sizes', _table(size_rows(census))),
        ('Equal images', _table(duplicate_rows(census))),
        ('Samples', _pictures(census)),
    ]
    body = ''.join(f'<section><h2>{title}</h2>{content}</section>' for title, content in sections if content)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>Data of {escape(name)}</title><style>{CSS}</style></head>'
        f'<body>{_head(census, name)}{body}</body></html>\n'
    )


def _head(census: Census, name: str) -> str:
    kind = 'bad' if census.problems else 'good'
    tiles: list[tuple[str, str, str]] = [
        (split, number(part.samples), f'{number(len(part.indices))} read') for split, part in census.splits.items()
    ]
    tiles += [
        ('problems', number(len(census.problems)), 'samples that cannot be used'),
        ('duplicates', number(len(census.duplicates)), 'images that are there twice or more'),
    ]
    shown = ''.join(
        f'<div class="tile"><p>{escape(title)}</p><strong>{value}</strong><p class="muted">{note}</p></div>'
        for title, value, note in tiles
    )
    return (
        f'<header><p class="brand">Phalanx</p><h1>Data of {escape(name)}</h1>'
        f'<p><span class="pill {kind}">{escape(verdict(census))}</span></p></header><section class="tiles">{shown}</section>'
    )


def _table(rows: Sequence[Row], colours: Sequence[str] = ()) -> str:
    """Rows as a table; shares have bars under them, and each row begins with its colour where there are `colours`."""
    if not rows:
        return ''
    head = ''.join(f'<th>{escape(column)}</th>' for column in rows[0])
    body = []
    for place, row in enumerate(rows):
        cells: list[str] = []
        for column, value in row.items():
            chip = f'<span style="color:{colours[place]}">&#9632;</span> ' if not cells and place < len(colours) else ''
            share = value if isinstance(value, float) and column.endswith('share') else None
            bar = '' if share is None else f' class="bar" style="--v:{100 * share:.1f}%"'
            cells.append(f'<td{bar}>{chip}{escape(number(value))}</td>')
        body.append(f'<tr>{"".join(cells)}</tr>')
    kind = ' class="numbers"' if not any(isinstance(value, str) for value in list(rows[0].values())[1:]) else ''
    return f'<div class="scroll"><table{kind}><tr>{head}</tr>{"".join(body)}</table></div>'


def _colours(census: Census) -> list[str]:
    """The colours that the classes have in the pictures."""
    expected = {name for survey in census.surveys.values() for name in survey.class_names}
    return [f'#{red:02x}{green:02x}{blue:02x}' for red, green, blue in palette(len(expected)).tolist()]


def _pictures(census: Census) -> str:
    figures = []
    for split, survey in census.surveys.items():
        indices = census.splits[split].indices
        for index in (indices[place] for place in spread(len(indices), PICTURES)):
            figures.append(
                f'<figure><img src="data:image/jpeg;base64,{_jpeg(survey.picture(index))}" alt="">'
                f'<figcaption>{escape(survey.name(index))} ({split})</figcaption></figure>'
            )
    return f'<div class="pictures" style="--n:4">{"".join(figures)}</div>' if figures else ''


def _jpeg(picture: Image) -> str:
    """The picture, not larger than WIDTH, as text for a page."""
    scale = min(1, WIDTH / max(picture.shape[:2]))
    small = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) if scale < 1 else picture
    _, data = cv2.imencode('.jpg', np.ascontiguousarray(small[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 85])
    return base64.b64encode(data.tobytes()).decode()
