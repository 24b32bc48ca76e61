"""Pictures and files of readings."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageDraw

from phalanx.data.samples import Image
from phalanx.families.fonts import find_font, find_fonts
from phalanx.families.writing import Writers, picture_writer, write_text
from phalanx.runtime.results import Reading

STRIP_HEIGHT = 28  # pixels: height of the caption under an image


def draw_comparison(image: Image, truth: str, reading: Reading) -> list[tuple[str, Image]]:
    """Return the image of a line, captioned with the true text and the reading."""
    verdict = 'right' if reading.text == truth else 'wrong'
    return [(f'{truth or "(no text)"} - read {describe_reading(reading)}: {verdict}', image)]


def write_txt(reading: Reading, image: Image, stem: Path) -> list[Path]:
    """Write the text as `STEM.txt`; return the file."""
    return write_text(stem, '.txt', reading.text + '\n')


def write_json(reading: Reading, image: Image, stem: Path) -> list[Path]:
    """Write text and confidence as `STEM.json`; return the file."""
    return write_text(stem, '.json', json.dumps(asdict(reading), ensure_ascii=False) + '\n')


def draw_reading(image: Image, reading: Reading) -> Image:
    """Return the image with its reading as a caption."""
    return add_caption(image, describe_reading(reading))


FORMATS = {'txt': write_txt, 'json': write_json, 'pictures': picture_writer(draw_reading, '_read.png')}
WRITERS = Writers(draw_reading, FORMATS, default=tuple(FORMATS))


def add_caption(image: Image, words: str) -> Image:
    """Return the image with `words` on a white strip below it."""
    font = find_font(words, find_fonts([words]))
    width = max(image.shape[1], int(font.getlength(words)) + 8)
    canvas = np.full((image.shape[0] + STRIP_HEIGHT, width, 3), 255, np.uint8)
    canvas[: image.shape[0], : image.shape[1]] = image
    picture = PIL.Image.fromarray(canvas)
    PIL.ImageDraw.Draw(picture).text((4, image.shape[0] + STRIP_HEIGHT / 2), words, fill=(0, 0, 0), font=font, anchor='lm')
    return np.asarray(picture)


def describe_reading(reading: Reading) -> str:
    """Return text and confidence for a person: `hello (0.98)`."""
    return f'{reading.text or "(nothing)"} ({reading.confidence:.2f})'
