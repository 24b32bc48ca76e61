"""TotalText: outlines of curved words, in a file for each image.

Ch'ng and Chan, Total-Text: A Comprehensive Dataset for Scene Text Detection and Recognition, ICDAR 2017.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.data.folders import Problems, text_of
from phalanx.families.text_detection.data.source import ILLEGIBLE, InFolders, Points, outline

BEGIN = re.compile(r'^(?=\s*x: *\[)', re.MULTILINE)  # of a word
WORD = re.compile(r'\s*x: *\[\[([^]]*)]], *y: *\[\[([^]]*)]](?:, *ornt: *\[[^]]*])?, *transcriptions: *(\[.*])\s*', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class TotalText(InFolders):
    """Images of a folder, and for each `NAME.jpg` its words in `poly_gt_NAME.txt`, or else in `poly_gt_NAME.mat`.

    Folders are relative to `root`, named as in the published archives. A line of text is a word, `x: [[..]], y: [[..]],
    ornt: [u'c'], transcriptions: [u'word']`, and may be wrapped within its numbers. Files of MATLAB take scipy. The word `#`
    is ignored.
    """

    train_images: str = 'Images/Train'
    train_labels: str = 'Groundtruth/Polygon/Train'
    eval_images: str = 'Images/Test'
    eval_labels: str = 'Groundtruth/Polygon/Test'

    def pairs(self, labels: Path, stem: str, problems: Problems) -> list[tuple[Points, str]]:
        file = labels / f'poly_gt_{stem}.txt'
        matlab = file.with_suffix('.mat')
        with problems:
            return from_matlab(matlab) if matlab.is_file() and not file.is_file() else from_text(file)
        return []


def from_text(file: Path) -> list[tuple[Points, str]]:
    """The outlines and words of a file. Raises FileNotFoundError, and ValueError, which names the line, for a bad one."""
    text, found = text_of(file), []
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
        xs, ys = (re.split(r'[\s,]+', numbers.strip()) for numbers in match.groups()[:2])
        try:
            places: Any = [[float(value) for value in values] for values in (xs, ys)]
            words = ast.literal_eval(match[3])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            places, words = [[], []], None
        found.append(word(places[0], places[1], words, where))
    return found


def from_matlab(file: Path) -> list[tuple[Points, str]]:
    """The same of a file of MATLAB, whose `polygt` has a row for each word: 'x:', xs, 'y:', ys, word, orientation."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ValueError(f'{file}: files of MATLAB take scipy; pip install scipy, or take the annotations as text') from None
    try:
        rows = loadmat(file)['polygt'].tolist()
        parts = [(row[1].reshape(-1).tolist(), row[3].reshape(-1).tolist(), row[4].reshape(-1).tolist()) for row in rows]
    except Exception as error:  # noqa: BLE001 - of a damaged file scipy raises what its parts happen to
        raise ValueError(f'{file}: is no file of MATLAB with words in `polygt`: {error!s:.200}') from None
    return [word(*part, f'{file}: word {number}') for number, part in enumerate(parts, 1)]


def word(xs: Sequence[float], ys: Sequence[float], words: Any, where: str) -> tuple[Points, str]:
    """An outline and what is written there. Raises ValueError, beginning with `where`."""
    if len(xs) != len(ys) or not isinstance(words, list) or len(words) > 1 or not all(isinstance(one, str) for one in words):
        raise ValueError(f'{where}: expected as many x as y and one word, got {len(xs)}, {len(ys)} and {str(words)[:80]}')
    text = ''.join(words)
    return outline([list(pair) for pair in zip(xs, ys, strict=True)], where), ILLEGIBLE if text == '#' else text
