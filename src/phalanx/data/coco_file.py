"""COCO's JSON read in blocks: as objects, the outlines of a million boxes would take gigabytes."""

import itertools
import json
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from phalanx.data.checks import AnnotationError, parse_json
from phalanx.data.folders import check_file
from phalanx.data.shapes import Polygon

Part = Literal['images', 'categories', 'annotations']
PARTS: tuple[Part, ...] = ('images', 'categories', 'annotations')
BLOCK = 1 << 20  # bytes read at a time
MOST = 1 << 26  # bytes of the polygons of an object
SEARCHED = 1 << 14  # characters at the end of those in which the last entry is looked for
NUMBERS = rb'[-+0-9.eE, \t\r\n]*+\]\s*+'
# The key of an object's outline, and a list of polygons; in a text, quotes are escaped.
OUTLINE = re.compile(rb'("segmentation"\s*:\s*)\[\s*\[%b(?:,\s*\[%b)*\]' % (NUMBERS, NUMBERS))
BETWEEN = re.compile(r'\}\s*,\s*(?=\{)')  # two entries, or what looks so
PLACE = re.compile(r'bytes (\d{1,15}) to (\d{1,15})')  # of polygons in the file
BLANKS = re.compile(r'[ \t\r\n]*')


class Block(NamedTuple):
    part: Part
    first: int  # place of the first entry in its list
    entries: list[Any]


@dataclass(slots=True)  # frozen, it would take twice the time
class StoredPolygons(Sequence[Polygon]):
    """Polygons of an object that are read from their file whenever they are used."""

    path: Path
    begin: int  # place in the file
    end: int

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self[:])

    def __getitem__(self, place: Any) -> Any:
        with self.path.open('rb') as file:
            flats = json.loads(read_place(file, (self.begin, self.end)))
        return [Polygon(np.array(flat, np.float64).reshape(-1, 2)) for flat in flats][place]


def read_polygons(file: BinaryIO, places: Sequence[tuple[int, int]], size: tuple[int, int]) -> list[list[Polygon]]:
    """Polygons at each of the places, of an image of this `size`, in a fraction of the time of `phalanx.data.shapes.polygon`.

    Raises ValueError for one that `polygon` would refuse, too.
    """
    if not places:
        return []
    # `[[1, 2], [3, 4]]` becomes `1, 2` and `, 3, 4`
    texts = [read_place(file, place).replace(b'[', b'').split(b']')[:-2] for place in places]
    counts = [[part.count(b',') + (not number) for number, part in enumerate(parts)] for parts in texts]
    whole = [count for several in counts for count in several]
    values = np.fromstring(b','.join(b''.join(parts) for parts in texts).decode(), sep=',')
    if len(values) != sum(whole) or any(count < 6 or count % 2 for count in whole):
        raise ValueError('not numbers, or too few')
    points, sides = values.reshape(-1, 2), np.array(size)
    if not ((points >= -sides) & (points <= 2 * sides)).all():
        raise ValueError('far outside the image')
    ends = itertools.accumulate(whole)
    polygons = iter([Polygon(points[(end - count) // 2 : end // 2]) for end, count in zip(ends, whole, strict=True)])
    return [[next(polygons) for _ in several] for several in counts]


def check_parts(content: object, path: Path) -> dict[str, Any]:
    """Return the content of a file with all parts of COCO's format. Raises AnnotationError."""
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in PARTS):
        raise AnnotationError(f'{path}: is not in the format of COCO: it needs lists `images`, `annotations` and `categories`')
    return content


def read_blocks(path: Path) -> Iterator[Block]:
    """Yield the entries of a file, those of `annotations` last, and without the polygons of objects that have a box.

    These polygons are nine tenths of the text of a file. Raises FileNotFoundError, and AnnotationError for invalid JSON.
    """
    check_file(path)
    with path.open('rb') as file:
        is_utf8 = json.detect_encoding(file.read(4)).startswith('utf-8')
        file.seek(0)
        if is_utf8:
            try:
                yield from _annotations_last(_Text(file))
                return
            except (ValueError, RecursionError) as error:
                reason = error
    # The whole file, in an encoding whose blocks cannot be cut at a quote, or for a message with a line.
    content = check_parts(parse_json(path.read_bytes(), path), path)
    if is_utf8:
        raise AnnotationError(f'{path}: is not in the format of COCO: {reason}')
    for part in PARTS:
        yield Block(part, 0, content[part])


def _annotations_last(text: '_Text') -> Iterator[Block]:
    """Yield the entries of a file; the text of annotations waits, if the file has other parts after them."""
    complete, counts, waiting = set[Part](), dict.fromkeys(PARTS, 0), deque[tuple[int, str]]()
    if categories := text.last_categories():  # as COCO's own files have them
        yield Block('categories', 0, categories)
    for part in text.parts():
        for entries, written in text.entries():
            if part == 'annotations' and not ('images' in complete and (categories or 'categories' in complete)):
                waiting.append((counts[part], written))
            elif part != 'categories' or not categories:
                yield Block(part, counts[part], text.with_outlines(entries))
            counts[part] += len(entries)
        if part in complete:
            raise ValueError(f'`{part}` occurs twice')
        complete.add(part)
    if missing := [part for part in PARTS if part not in complete]:
        raise ValueError(f'it has no list `{missing[0]}`')
    while waiting:
        first, written = waiting.popleft()
        yield Block('annotations', first, text.with_outlines(json.loads(f'[{written}]')))


def place_of_polygons(outline: object) -> tuple[int, int] | None:
    """Begin and end, in the file, of the polygons that `read_blocks` left there; None for other outlines."""
    place = PLACE.fullmatch(outline) if isinstance(outline, str) else None
    return (int(place[1]), int(place[2])) if place else None


def read_place(file: BinaryIO, place: tuple[int, int]) -> bytes:
    """Bytes from begin to end, but no more than polygons may have: a text of the file may look like a place, too."""
    begin, end = place
    return os.pread(file.fileno(), max(0, min(end - begin, MOST)), begin)


class _EndOfFileError(ValueError):
    pass


class _Text:
    """A file in UTF-8, of which some text is in memory; the places of polygons in the file stand for these."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._rest = file, b''  # bytes that were read and are not in the text yet
        self._text, self._at, self._is_start = '', 0, True
        self._decoder = json.JSONDecoder()

    def last_categories(self) -> list[Any]:
        """The categories near the end of the file; else empty."""
        size = os.fstat(self._file.fileno()).st_size
        end = os.pread(self._file.fileno(), BLOCK, max(0, size - BLOCK))
        try:  # the rest of an object, if it is complete, begins with one of its own keys
            found = json.loads(b'{' + end[end.rindex(b'"categories"') :])['categories']
        except (ValueError, RecursionError):
            return []
        return found if isinstance(found, list) else []

    def parts(self) -> Iterator[Part]:
        """Yield the name of each list of COCO in an object; the caller reads its `entries`. Raises ValueError."""
        self._take('{')
        sign = '}' if self._sign() == '}' else ','
        while sign == ',':
            key = self._value()
            self._take(':')
            part = next((part for part in PARTS if part == key), None)
            if part and self._sign() == '[':
                yield part
            elif part:
                raise ValueError(f'`{part}` is not a list')
            else:
                self._value()
            sign = self._take(',}')
        if self._sign():
            raise ValueError('text after the end')

    def entries(self) -> Iterator[tuple[list[Any], str]]:
        """Yield the values of a list, some at a time, with their text. Raises ValueError."""
        self._take('[')
        if self._sign() == ']':
            self._at += 1
            return
        found, begin, sign = list[Any](), self._at, ','
        while sign == ',':
            if not found and (many := self._many_entries()):
                yield many
                begin = self._at
            try:
                value, end = self._decoder.raw_decode(self._text, _after_blanks(self._text, self._at))
                end = _after_blanks(self._text, end)
            except ValueError:
                end = len(self._text)
            sign = self._text[end : end + 1]
            if sign:
                found.append(value)
                self._at = end + 1
            if found and sign != ',':
                yield found, self._text[begin : self._at - 1]
            if not sign:  # the value goes on in the next block, or is no JSON
                self._read_more()
                found, begin, sign = [], self._at, ','
        if sign != ']':
            raise ValueError(f'{sign!r} in a list')

    def _many_entries(self) -> tuple[list[Any], str] | None:
        """The entries up to the last `},{` in memory, which are read faster together; None if this is no such list.

        It is not if `},{` is in a text, within an entry, or beyond the end of the list.
        """
        ends = [*BETWEEN.finditer(self._text, max(self._at, len(self._text) - SEARCHED))]
        if not ends:
            return None
        written = self._text[self._at : ends[-1].start() + 1]
        try:
            found = json.loads(f'[{written}]')
        except ValueError:
            return None
        self._at = ends[-1].end()
        return found, written

    def with_outlines(self, entries: list[Any]) -> list[Any]:
        """The entries, with the polygons of objects without a box."""
        for entry in entries:
            outline = entry.get('segmentation') if isinstance(entry, dict) and not entry.get('bbox') else None
            if place := place_of_polygons(outline):
                entry['segmentation'] = json.loads(read_place(self._file, place))
        return entries

    def _value(self) -> Any:
        """The next value, with a sign after it. Raises ValueError."""
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, _after_blanks(self._text, self._at))
                if _after_blanks(self._text, end) < len(self._text):  # else the value may go on
                    self._at = end
                    return value
            except ValueError:
                pass
            self._read_more()

    def _sign(self) -> str:
        """The next character that is not blank, which stays; empty at the end of the file."""
        while True:
            self._at = _after_blanks(self._text, self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            try:
                self._read_more()
            except _EndOfFileError:
                return ''

    def _take(self, signs: str) -> str:
        """Take the next character, which must be one of `signs`. Raises ValueError."""
        sign = self._sign()
        if not sign or sign not in signs:
            raise ValueError(f'{sign!r} where one of {signs} is expected')
        self._at += 1
        return sign

    def _read_more(self) -> None:
        """Append a block, as long as the text for long values. Raises _EndOfFileError at the end of the file."""
        block = self._file.read(max(BLOCK, len(self._rest), len(self._text) - self._at))
        if not block and not self._rest:
            raise _EndOfFileError('the file ends')
        read, data = self._file.tell(), self._rest + block
        # Polygons have no quote in them: in front of the last quote, none is cut.
        cut = max(0, data.rfind(b'"')) if block else len(data)
        self._rest = data[cut:]
        more = _without_polygons(data[:cut], read - len(data))
        text = more.decode('utf-8-sig' if self._is_start else 'utf-8', 'surrogatepass')
        self._is_start = self._is_start and not cut
        self._text, self._at = self._text[self._at :] + text, 0


def _without_polygons(data: bytes, offset: int) -> bytes:
    """Text with places in the file instead of lists of polygons; it begins at `offset` there."""
    return OUTLINE.sub(lambda one: b'%b"bytes %d to %d"' % (one[1], offset + one.end(1), offset + one.end()), data)


def _after_blanks(text: str, at: int) -> int:
    blanks = BLANKS.match(text, at)
    return blanks.end() if blanks else at
