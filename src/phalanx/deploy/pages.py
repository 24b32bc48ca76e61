"""Result files of read pages: JSON, text, hOCR, searchable PDF, and a picture."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from html import escape
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import PIL.ImageDraw

import phalanx
from phalanx.data.samples import Image
from phalanx.deploy.documents import as_pdf
from phalanx.deploy.words import words_of
from phalanx.families.fonts import find_font, find_fonts
from phalanx.families.text_detection.draw import LABELS, TEXT_COLOUR, draw_outlines
from phalanx.families.writing import Writers, write_picture, write_text
from phalanx.runtime.reading import angle_of, grid_of
from phalanx.runtime.results import Line, Outline

PICTURE_SIDE = 2000  # of `page_read.jpg` in pixels
HOCR = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml">
<head>
<title>{name}</title>
<meta charset="utf-8"/>
<meta name="ocr-system" content="phalanx {version}"/>
<meta name="ocr-capabilities" content="ocr_page ocr_line ocrx_word"/>
</head>
<body>
<div class="ocr_page" id="page_1" title="image &quot;{name}&quot;; bbox 0 0 {width} {height}; ppageno 0">
{lines}
</div>
</body>
</html>
"""


def as_json(lines: Sequence[Line], page: Image, stem: Path) -> list[Path]:
    rows = ',\n '.join(json.dumps(asdict(line), ensure_ascii=False) for line in lines)
    return write_text(stem, '.json', f'[{rows}]\n')


def as_text(lines: Sequence[Line], page: Image, stem: Path) -> list[Path]:
    """Write one row of the page per line, with tabs between texts side by side; empty cells of tables stay."""
    rows = ('\t'.join(line.text if line else '' for line in row) for row in grid_of(lines))
    return write_text(stem, '.txt', ''.join(f'{row}\n' for row in rows))


def as_hocr(lines: Sequence[Line], page: Image, stem: Path) -> list[Path]:
    """Write hOCR 1.2: lines and words with their boxes.

    The width of a word within its line is estimated from its number of characters; its confidence is that of the line, in per
    cent. The angle of a turned line is in whole degrees, counter-clockwise.
    """
    spans = []
    for number, line in enumerate(lines, 1):
        confidence = f'x_wconf {100 * line.confidence:.0f}'
        words = ' '.join(
            f'<span class="ocrx_word" id="word_{number}_{place}" title="{bbox(points)}; {confidence}">{escape(word)}</span>'
            for place, (word, points) in enumerate(words_of(line), 1)
        )
        # hOCR 1.2, textangle: rotation of the text, in degrees counter-clockwise.
        angle = round(angle_of(line.points)) % 360 if len(line.points) == 4 else 0
        title = bbox(line.points) + (f'; textangle {angle}' if angle else '')
        spans.append(f'<span class="ocr_line" id="line_{number}" title="{title}">{words}</span><br/>')
    height, width = page.shape[:2]
    hocr = HOCR.format(name=escape(stem.name), version=phalanx.__version__, width=width, height=height, lines='\n'.join(spans))
    return write_text(stem, '.hocr', hocr)


def bbox(points: Outline) -> str:
    xs, ys = zip(*points, strict=True)
    return f'bbox {min(xs):.0f} {min(ys):.0f} {max(xs):.0f} {max(ys):.0f}'


def as_picture(lines: Sequence[Line], page: Image, stem: Path) -> list[Path]:
    """Write the page beside its texts, reduced by an integer factor to at most PICTURE_SIDE pixels on its longer side."""
    H, W = page.shape[:2]
    if (factor := math.ceil(max(H, W) / PICTURE_SIDE)) > 1:
        size = max(1, W // factor), max(1, H // factor)
        page = cv2.resize(page, size, interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)
        lines = [replace(line, points=tuple((x / factor, y / factor) for x, y in line.points)) for line in lines]
    return write_picture(stem, '_read.jpg', draw_page(page, lines))


def draw_page(page: Image, lines: Sequence[Line]) -> Image:
    """Draw the page [H, W, 3] with outlined lines, and their texts at the same positions beside it: [H, 2 W, 3]."""
    beside = PIL.Image.new('RGB', (page.shape[1], page.shape[0]), (255, 255, 255))
    pen, fonts = PIL.ImageDraw.Draw(beside), find_fonts(line.text for line in lines)
    for line in lines:
        xs, ys = zip(*line.points, strict=True)
        width, height = max(1.0, max(xs) - min(xs)), max(1.0, max(ys) - min(ys))
        # As high as the line; smaller if the text would be wider than its line.
        letters = max(6.0, 0.8 * min(width, height))
        if (long := find_font(line.text, fonts, letters).getlength(line.text)) > width:
            letters = max(6.0, letters * width / long)
        pen.text(
            (min(xs), (min(ys) + max(ys)) / 2),
            line.text,
            fill=(0, 0, 0),
            font=find_font(line.text, fonts, letters),
            anchor='lm',
        )
    outlined = draw_outlines(page, [line.points for line in lines], [TEXT_COLOUR] * len(lines))
    return np.concatenate([outlined, np.asarray(beside)], axis=1)


DEFAULT = {'json': as_json, 'text': as_text, 'hocr': as_hocr, 'picture': as_picture}
WRITERS = Writers(draw_page, {**DEFAULT, 'pdf': as_pdf}, default=tuple(DEFAULT), labels=LABELS)
