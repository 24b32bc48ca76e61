"""Files of annotation tools, in which people correct what a model has found. They have no scores."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.data.samples import Image
from phalanx.data.shapes import DIGITS
from phalanx.families.writing import write_new

LABELME = '6.3.1'  # the version of labelme whose files are written
TEXT = 'text'  # label of a text
UNREAD = 'TEMPORARY'  # transcription of a text that PPOCRLabel has not read
CACHE = 'Cache.cach'  # PPOCRLabel's results of models, in the folder of the images: a line for each image, the last one counts
Points = Sequence[Sequence[float]]  # x, y in pixels
REPLACED = re.compile(r'(?<=fals)e|(?<=tru)e|(?<=nul)l')  # ends of the words that PPOCRLabel makes Python's, in texts, too


class Shape(NamedTuple):
    """Part of a label that a person may correct."""

    label: str
    points: Points  # two of a rectangle, or the corners of a polygon
    text: str = ''


def write_labelme(shapes: Iterable[Shape], image: Image, stem: Path, file: Path) -> list[Path]:
    """Write `stem`.json for labelme, which finds the image by its path from there, and X-AnyLabeling, which uses its name."""
    # resolved: the path leads through `..`, which the disk follows from where a link leads
    path = os.path.relpath(file.parent.resolve() / file.name, stem.parent.resolve())
    rows: list[dict[str, object]] = [
        {
            'label': shape.label,
            'points': _rounded(shape.points),
            'group_id': None,
            'description': shape.text,
            'shape_type': 'rectangle' if len(shape.points) == 2 else 'polygon',
            'flags': {},
        }
        for shape in shapes
    ]
    height, width = image.shape[:2]
    content: dict[str, object] = {'version': LABELME, 'flags': {}, 'shapes': rows, 'imagePath': path, 'imageData': None}
    content |= {'imageHeight': height, 'imageWidth': width}
    return write_new(stem.with_name(f'{stem.name}.json'), json.dumps(content, ensure_ascii=False, indent=1).encode())


def write_ppocrlabel(texts: Iterable[Shape], stem: Path, file: Path) -> list[Path]:
    """Append the line of an image to PPOCRLabel's cache of results beside `stem`; they go to its labels when confirmed."""
    rows = [{'transcription': text.text or UNREAD, 'points': _rounded(text.points)} for text in texts]
    # PPOCRLabel evaluates the line as Python, after `true` -> `True` ...: escaped, these words in texts stay as they are.
    content = REPLACED.sub(lambda letter: f'\\u{ord(letter[0]):04x}', json.dumps(rows, ensure_ascii=False))
    line = f'{"/".join(Path(os.path.normpath(file.absolute())).parts[-2:])}\t{content}\n'.encode()
    cache = stem.with_name(CACHE)
    # One write of the whole line: several processes append to the file.
    with cache.open('ab', buffering=len(line) + 1) as lines:
        lines.write(line)
    return [cache]


def _rounded(points: Points) -> list[list[float]]:
    return [[round(float(value), DIGITS) for value in point] for point in points]
