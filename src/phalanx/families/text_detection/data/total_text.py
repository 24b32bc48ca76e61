"""TotalText: outlines of curved words, one label file per image.

Ch'ng and Chan, Total-Text: A Comprehensive Dataset for Scene Text Detection and Recognition, ICDAR 2017.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.data.folders import Problems, read_text
from phalanx.data.texts import ILLEGIBLE
from phalanx.families.text_detection.data.source import LabelFilePerImage, Points, parse_outline

BEGIN = re.compile(r'^(?=\s*x: *\[)', re.MULTILINE)  # first line of a word
WORD = re.compile(r'\s*x: *\[\[([^]]*)]], *y: *\[\[([^]]*)]](?:, *ornt: *\[[^]]*])?, *transcriptions: *(\[.*])\s*', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class TotalText(LabelFilePerImage):
    """Images `NAME.jpg` of a folder and their words in `poly_gt_NAME.txt`, or else in `poly_gt_NAME.mat`.

    Folders are relative to `root`; the defaults are the names in the published archives. Each line of a text file is a word,
    `x: [[..]], y: [[..]], ornt: [u'c'], transcriptions: [u'word']`; it may be wrapped between numbers. MATLAB files need scipy.
    Words `#` are ignored.
    """

    train_images: str = 'Images/Train'
    train_labels: str = 'Groundtruth/Polygon/Train'
    eval_images: str = 'Images/Test'
    eval_labels: str = 'Groundtruth/Polygon/Test'

    def read_pairs(self, labels: Path, stem: str, problems: Problems) -> list[tuple[Points, str]]:
        """Return outlines and transcriptions; faults go to `problems`. Raises FileNotFoundError."""
        file = labels / f'poly_gt_{stem}.txt'
        matlab = file.with_suffix('.mat')
        with problems:
            return read_matlab_file(matlab) if matlab.is_file() and not file.is_file() else read_text_file(file)
        return []


def read_text_file(file: Path) -> list[tuple[Points, str]]:
    """Return outlines and words of a text file. Raises FileNotFoundError, and ValueError with the line of a malformed word."""
    text, pairs = read_text(file), []
    # A word can span several lines: it ends where the next one begins.
    begins = [match.start() for match in BEGIN.finditer(text)]
    for begin, end in zip([0, *begins[1:]], [*begins[1:], len(text)], strict=True):
        where = f'{file}:{text.count(chr(10), 0, begin) + 1}'
        if not text[begin:end].strip():
            continue
        match = WORD.fullmatch(text, begin, end)
        if match is None:
            raise ValueError(
                f"{where}: expected x: [[..]], y: [[..]], ornt: [u'..'], transcriptions: [u'..'], got {text[begin:end][:80]!r}"
            )
        # NumPy's notation: numbers separated by spaces, commas or line breaks.
        xs, ys = (re.split(r'[\s,]+', numbers.strip()) for numbers in match.groups()[:2])
        try:
            coordinates: Any = [[float(value) for value in values] for values in (xs, ys)]
            words = ast.literal_eval(match[3])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            coordinates, words = [[], []], None  # reported by parse_word
        pairs.append(parse_word(coordinates[0], coordinates[1], words, where))
    return pairs


def read_matlab_file(file: Path) -> list[tuple[Points, str]]:
    """Return outlines and words of a MATLAB file, whose `polygt` has one row per word: 'x:', xs, 'y:', ys, word, orientation.

    Raises ValueError for a damaged file and without scipy.
    """
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ValueError(
            f'{file}: MATLAB files need scipy: pip install "phalanx-vision[detr]", or use the annotations as text files'
        ) from None
    try:
        # Columns 1, 3 and 4: xs, ys and the word.
        rows = loadmat(file)['polygt'].tolist()
        parts = [(row[1].reshape(-1).tolist(), row[3].reshape(-1).tolist(), row[4].reshape(-1).tolist()) for row in rows]
    except Exception as error:  # noqa: BLE001 - scipy raises arbitrary errors for damaged files
        raise ValueError(f'{file}: is not a MATLAB file with words in `polygt`: {error!s:.200}') from None
    return [parse_word(*part, f'{file}: word {number}') for number, part in enumerate(parts, 1)]


def parse_word(xs: Sequence[float], ys: Sequence[float], words: Any, where: str) -> tuple[Points, str]:
    """Return outline and text of a word. Raises ValueError that starts with `where`."""
    if len(xs) != len(ys) or not isinstance(words, list) or len(words) > 1 or not all(isinstance(word, str) for word in words):
        raise ValueError(f'{where}: expected as many x as y and one word, got {len(xs)}, {len(ys)} and {str(words)[:80]}')
    text = ''.join(words)
    return parse_outline([list(pair) for pair in zip(xs, ys, strict=True)], where), ILLEGIBLE if text == '#' else text
