"""Texts of a page as PaddleOCR and PPOCRLabel (JSON), ICDAR and TotalText (lines) write them, for recipes and `phalanx new`."""

import ast
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.data.checks import AnnotationError, parse_json
from phalanx.data.shapes import corners_of

ILLEGIBLE = '###'
IGNORED_TEXTS = (ILLEGIBLE, '*')  # transcriptions of unreadable texts
# Between corners and text: the script in MLT 2017 and 2019; in RCTW-17, 1 if the text, in quotes, is difficult.
COLUMN = re.compile(r'(?:Arabic|Bangla|Chinese|Hindi|Japanese|Korean|Latin|Mixed|None|Symbols),(.*)|([01]),"(.*)"')
BEGIN = re.compile(r'^(?=[ \t]*x: *\[)', re.MULTILINE)  # first line of a word of TotalText
WORD = re.compile(r'\s*x: *\[\[([^]]*)]], *y: *\[\[([^]]*)]](?:, *ornt: *\[[^]]*])?, *transcriptions: *(\[.*])\s*', re.DOTALL)

LINE = 'image<TAB>[{"transcription": "..", "points": [[x, y], ..]}]'  # of PaddleOCR's label files, in messages

FROM_RIGHT_CURE = (
    'the network reads from the left, so such texts must be in the order of the image, from the left, and '
    '`characters.right_to_left: true` turns results round'
)


class PageText(NamedTuple):
    points: list[list[float]]  # at least 3 x, y in pixels
    text: str  # ILLEGIBLE if PPOCRLabel marks it as difficult


def parse_page(text: str, where: str) -> list[PageText]:
    """Parse `[{"transcription": .., "points": [[x, y], ..]}, ..]`. Raises AnnotationError that starts with `where`."""
    listed = parse_json(text, where)
    if not isinstance(listed, list):
        raise AnnotationError(f'{where}: expected a list of texts, got {text[:80]!r}')
    return [_parse_entry(entry, f'{where}: text {number}') for number, entry in enumerate(listed, 1)]


def _parse_entry(entry: Any, where: str) -> PageText:
    if not isinstance(entry, dict) or not isinstance(entry.get('transcription'), str) or 'points' not in entry:
        raise AnnotationError(f'{where}: expected {{"transcription": "..", "points": [[x, y], ..]}}, got {str(entry)[:80]}')
    points = check_outline(entry['points'], f'{where}: points')
    difficult = entry.get('difficult', False)
    if difficult not in (False, True):
        raise AnnotationError(f'{where}: difficult: expected true or false, got {str(difficult)[:80]!r}')
    return PageText(points, ILLEGIBLE if difficult else entry['transcription'])


def has_column(lines: Iterable[str]) -> bool:
    """True if all lines of an ICDAR file have a COLUMN between corners and text; blank lines do not count."""
    rests = [line.split(',', 8)[8:] for line in lines if line.strip()]
    return bool(rests) and all(rest and COLUMN.fullmatch(rest[0]) for rest in rests)


def parse_icdar(line: str, where: str, count: int = 8, divider: str = ',', *, column: bool = False) -> PageText:
    """Parse a line of ICDAR: `count` coordinates of corners (8: of ICDAR 2015) or of a box (4: 2013), and a text.

    `column`: there is a COLUMN between them. Raises AnnotationError that starts with `where`.
    """
    fields = line.split(divider)
    values = parse_coordinates(fields[:count])
    if len(fields) <= count or not values:
        known = ','.join(f'x{n},y{n}' for n in range(1, count // 2 + 1)) + ',text'
        raise AnnotationError(f'{where}: expected {known} with coordinates in pixels, got {line[:80]!r}')
    if count == 8 and len(parse_coordinates(fields[8:14])) == 6:  # as in CTW1500; no text is like this
        raise AnnotationError(f'{where}: has more than four corners; write outlines as PaddleOCR does: {LINE}')
    text = divider.join(fields[count:])  # which may have the divider in it
    if count == 4:  # between quotes
        return PageText(corners_of(*values), text.strip().strip('"'))
    points = [values[place : place + 2] for place in range(0, count, 2)]
    if column and (parts := COLUMN.fullmatch(text)):
        after_script, difficult, quoted = parts.groups()
        text = ILLEGIBLE if difficult == '1' else quoted if difficult else after_script
    return PageText(points, text)


def parse_total_text(text: str, file: Path) -> list[PageText]:
    """Parse the text of a file of TotalText, for words that may be curved. Raises AnnotationError, naming the line."""
    words = list[PageText]()
    # A word can span several lines: it ends where the next one begins.
    begins = [match.start() for match in BEGIN.finditer(text)]
    for begin, end in zip([0, *begins[1:]], [*begins[1:], len(text)], strict=True):
        where = f'{file}:{text.count(chr(10), 0, begin) + 1}'
        if not text[begin:end].strip():
            continue
        match = WORD.fullmatch(text, begin, end)
        if match is None:
            raise AnnotationError(
                f"{where}: expected x: [[..]], y: [[..]], ornt: [u'..'], transcriptions: [u'..'], got {text[begin:end][:80]!r}"
            )
        # NumPy's notation: numbers separated by spaces, commas or line breaks.
        xs, ys = (re.split(r'[\s,]+', numbers.strip()) for numbers in match.groups()[:2])
        try:
            coordinates: Any = [[float(value) for value in values] for values in (xs, ys)]
            strings = ast.literal_eval(match[3])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            coordinates, strings = [[], []], None  # reported by parse_word
        words.append(parse_word(coordinates[0], coordinates[1], strings, where))
    return words


def read_matlab_file(file: Path) -> list[PageText]:
    """Return the words of a MATLAB file, whose `polygt` has one row per word: 'x:', xs, 'y:', ys, word, orientation.

    Raises AnnotationError for a damaged file and without scipy.
    """
    try:
        from scipy.io import loadmat
    except ImportError:
        raise AnnotationError(
            f'{file}: MATLAB files need scipy: pip install "phalanx-vision[detr]", or use the annotations as text files'
        ) from None
    try:
        # Columns 1, 3 and 4: xs, ys and the word.
        rows = loadmat(file)['polygt'].tolist()
        parts = [(row[1].reshape(-1).tolist(), row[3].reshape(-1).tolist(), row[4].reshape(-1).tolist()) for row in rows]
    except Exception as error:  # noqa: BLE001 - scipy raises arbitrary errors for damaged files
        raise AnnotationError(f'{file}: is not a MATLAB file with words in `polygt`: {error!s:.200}') from None
    return [parse_word(*part, f'{file}: word {number}') for number, part in enumerate(parts, 1)]


def parse_word(xs: Sequence[float], ys: Sequence[float], words: Any, where: str) -> PageText:
    """Return a word of TotalText. Raises AnnotationError that starts with `where`."""
    if len(xs) != len(ys) or not isinstance(words, list) or len(words) > 1 or not all(isinstance(word, str) for word in words):
        raise AnnotationError(f'{where}: expected as many x as y and one word, got {len(xs)}, {len(ys)} and {str(words)[:80]}')
    text = ''.join(words)
    points = check_outline([list(pair) for pair in zip(xs, ys, strict=True)], where)
    return PageText(points, ILLEGIBLE if text == '#' else text)


def parse_coordinates(fields: list[str]) -> list[float]:
    """The fields as numbers; empty if some is none."""
    try:
        values = [float(field) for field in fields]
    except ValueError:
        return []
    return values if all(map(is_coordinate, values)) else []


def check_outline(values: Any, where: str) -> list[list[float]]:
    """Return an outline if it is a list of 3 pairs or more. Raises AnnotationError that starts with `where`."""
    # Files are not trusted: NaN, strings or huge numbers would fail deep inside OpenCV.
    is_list = isinstance(values, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in values)
    if not is_list or not all(is_coordinate(value) for pair in values for value in pair):
        raise AnnotationError(f'{where}: an outline is a list of points [x, y] in pixels, got {str(values)[:80]}')
    if len(values) < 3:
        raise AnnotationError(f'{where}: an outline has at least 3 points, got {len(values)}')
    return [[float(x), float(y)] for x, y in values]


def reads_from_right(text: str) -> bool:
    """True if a letter of `text` belongs to a script that is written from the right, such as Hebrew or Arabic."""
    return not text.isascii() and any(unicodedata.bidirectional(character) in ('R', 'AL') for character in text)


def is_coordinate(value: Any) -> bool:
    """True if `value` is a finite number that can be a pixel coordinate."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 2**24
