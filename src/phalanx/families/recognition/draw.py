"""Readings as pictures and files."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from phalanx.data.samples import Image
from phalanx.families.writing import Writers, picture_writer, write_text
from phalanx.runtime.results import Reading
from phalanx.synthetic.lines import Fonts

STRIP = 28  # height in pixels of the strip of words under an image
LETTERS = 18  # their height


def compared(image: Image, truth: str, reading: Reading) -> list[tuple[str, Image]]:
    """The image of a line, captioned with what stands there and what was read."""
    verdict = 'right' if reading.text == truth else 'wrong'
    return [(f'{truth or "(no text)"} - read {said(reading)}: {verdict}', image)]


def as_text(reading: Reading, image: Image, stem: Path) -> list[Path]:
    return write_text(stem, '.txt', reading.text + '\n')


def as_json(reading: Reading, image: Image, stem: Path) -> list[Path]:
    """Text and confidence."""
    return write_text(stem, '.json', json.dumps(asdict(reading), ensure_ascii=False) + '\n')


def with_reading(image: Image, reading: Reading) -> Image:
    """The image with its reading below."""
    return with_words(image, said(reading))


WAYS = {'txt': as_text, 'json': as_json, 'pictures': picture_writer(with_reading, '_read.png')}
WRITERS = Writers(with_reading, WAYS, default=tuple(WAYS))


def with_words(image: Image, words: str) -> Image:
    """The image with `words` on a white strip below."""
    font = find_font(words, find_fonts([words]))
    width = max(image.shape[1], int(font.getlength(words)) + 8)
    canvas = np.full((image.shape[0] + STRIP, width, 3), 255, np.uint8)
    canvas[: image.shape[0], : image.shape[1]] = image
    picture = PIL.Image.fromarray(canvas)
    PIL.ImageDraw.Draw(picture).text((4, image.shape[0] + STRIP / 2), words, fill=(0, 0, 0), font=font, anchor='lm')
    return np.asarray(picture)


def said(reading: Reading) -> str:
    """What was read, and how sure the network is: `hello (0.98)`."""
    return f'{reading.text or "(nothing)"} ({reading.confidence:.2f})'


def find_fonts(texts: Iterable[str]) -> Fonts | None:
    """The system's fonts that can write something of `texts`; None where Pillow's own, which has Latin letters, is enough."""
    characters = sorted(set().union(*texts))
    try:
        return None if ''.join(characters).isascii() else Fonts(None, characters)
    except FileNotFoundError:
        return None


def find_font(text: str, fonts: Fonts | None, size: float = LETTERS) -> PIL.ImageFont.FreeTypeFont | PIL.ImageFont.ImageFont:
    """The first of `fonts` that has all characters of `text`, where one is needed; Pillow's own otherwise."""
    found = [] if fonts is None or text.isascii() else fonts.writing(text)
    return PIL.ImageFont.truetype(str(found[0]), size) if found else PIL.ImageFont.load_default(size)
