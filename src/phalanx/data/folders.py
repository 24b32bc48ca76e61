"""Files and lists of data sets: presence, encoding, paths, class names. Their content is untrusted."""

import contextlib
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from phalanx.data.checks import AnnotationError, check_pointer, parse_json
from phalanx.system.buckets import StorePath
from phalanx.system.paths import hint_slashes

SHOWN = 5  # of many missing files, the first few are named
LONGEST_PATH, LONGEST_NAME = 4095, 255  # bytes, of Linux
LISTED = 20  # of many other problems

MARKS = {b'\xef\xbb\xbf': 'utf-8-sig', b'\xff\xfe': 'utf-16', b'\xfe\xff': 'utf-16'}
CHINESE = dict.fromkeys(('gb2312', 'gbk', 'cp936'), 'gb18030')  # a superset: files often exceed what they declare


def check_folder(path: Path) -> None:
    """Raise FileNotFoundError, naming the key to fix, if there is no such folder."""
    if not path.is_dir():
        raise FileNotFoundError(f'{path}: there is no such folder; data.root must name the folder of the data set')


def check_present(root: Path, *lists: Iterable[str], listings: Sequence[Path] = ()) -> None:
    """Raise FileNotFoundError with the first missing files of `lists` below `root` and their number.

    `listings`: the text files that name them, of which the message then has the line.

    Each folder is listed once: on a network disk that is much faster than one request per file. Names are compared by 64 bits
    of their hash, which take a tenth of the memory of the names. Web servers have no lists: a missing file is reported when it
    is read.
    """
    if str(root).startswith(('http:', 'https:')):
        return
    named: dict[str, array[int]] = {}  # hashes of the names, by folder
    for path in chain.from_iterable(lists):
        folder, _, name = path.rpartition('/')
        if folder not in named:
            named[folder] = array('q')
        named[folder].append(hash(name))
    absent = {folder: {*np.setdiff1d(hashes, _names_in(root / folder)).tolist()} for folder, hashes in named.items()}
    if any(map(len, absent.values())):
        parts = ((path, *path.rpartition('/')) for path in chain.from_iterable(lists))
        missing = dict.fromkeys(path for path, folder, _, name in parts if hash(name) in absent[folder])  # in order, each once
        more = f' and {len(missing) - SHOWN} more' if len(missing) > SHOWN else ''
        count = '1 file is' if len(missing) == 1 else f'{len(missing)} files are'
        cure = hint_slashes(''.join(missing))
        cure = '; a line names one image: write a line for each of a list' if next(iter(missing)).startswith('["') else cure
        shown = ', '.join(list(missing)[:SHOWN]) + more
        origin = f' ({_find_line(listings, next(iter(missing)))})' if listings else ''
        raise FileNotFoundError(f'{count} missing in {root}: {shown}{origin}{cure}')


def _find_line(listings: Sequence[Path], path: str) -> str:
    """The first text file and line that name a path."""
    named = re.compile(rf'(?<![\w./-]){re.escape(path)}(?![\w./-])')
    found = (f'{file}:{number}' for file in listings for number, line in read_lines(file) if named.search(line))
    return next(found, f'named in {listings[0]}')


def _names_in(folder: Path) -> npt.NDArray[np.int64]:
    """Hashes of the names of the files in a folder; none if there is no such folder."""
    if not folder.is_dir():
        return np.zeros(0, np.int64)
    if isinstance(folder, StorePath):
        return np.fromiter(map(hash, folder.names()), np.int64)
    with os.scandir(folder) as files:
        return np.fromiter((hash(file.name) for file in files), np.int64)


class Problems:
    """Collection of errors, so that all of them can be reported and fixed at once.

    `with problems:` records the ValueError that its block raises, and continues after it.
    """

    def __init__(self) -> None:
        self.found: list[str] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if isinstance(error, ValueError):
            self.found.append(str(error))
        return isinstance(error, ValueError)

    def check(self) -> None:
        """Raise ValueError with the recorded errors, one per line, if there are any."""
        if self.found:
            more = [f'and {len(self.found) - LISTED} more'] if len(self.found) > LISTED else []
            raise ValueError('\n'.join(self.found[:LISTED] + more))


def check_inside(path: str, root: Path, where: str) -> str:
    """Return `path`. Raises ValueError, beginning with `where`, when it leads outside `root`."""
    if path.isascii() and 0 < len(path) <= LONGEST_NAME and path[0] != '/' and '..' not in path and '\0' not in path:
        return path  # nearly all paths; lists have millions
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:  # JSON can hold lone surrogates; rejected below
        name = b'\0'
    if b'\0' in name or len(name) > LONGEST_PATH or any(len(part) > LONGEST_NAME for part in name.split(b'/')):
        raise ValueError(f'{where}: {path[:80]!r} is not the name of a file, or too long for one')
    if not path or Path(path).is_absolute() or Path(os.path.normpath(path)).parts[:1] == (os.pardir,):
        raise ValueError(f'{where}: {path!r} lies outside the data set {root}; paths must be relative to it')
    return path


def check_file(path: Path) -> None:
    """Raise FileNotFoundError if there is no such file."""
    if not path.is_file():
        raise FileNotFoundError(f'{path}: there is no such file')


def read_json(path: Path) -> Any:
    """Content of a JSON file. Raises FileNotFoundError, and AnnotationError for invalid JSON."""
    check_file(path)
    return parse_json(path.read_bytes(), path)


def read_text(path: Path) -> str:
    """Text of a file. Raises FileNotFoundError, and AnnotationError for text that cannot be decoded."""
    check_file(path)
    return decode_text(path.read_bytes(), path)


def decode_text(data: bytes, path: Path) -> str:
    """Text in UTF-8, or in the encoding of its byte order mark, which editors and PowerShell write. Raises AnnotationError."""
    check_pointer(data, path)
    encoding = marked_encoding(data) or 'utf-8'
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise AnnotationError(f'{path}: is not UTF-8 text (byte {error.start}); save it as such') from None
    if '\0' in text:
        line = text[: text.index('\0')].count('\n') + 1
        raise AnnotationError(f'{path}:{line}: is not UTF-8 text, which has no zero byte; save it as such')
    return text.replace('\r\n', '\n').replace('\r', '\n')


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a text file that are not blank, with their numbers from 1, one after the other: lists have millions.

    Raises FileNotFoundError, and ValueError when there are none.
    """
    text = read_text(path)
    if not text or text.isspace():
        raise ValueError(f'{path}: is empty')
    return _lines_of(text)


def _lines_of(text: str) -> Iterator[tuple[int, str]]:
    begin, number = 0, 0
    while begin <= len(text):
        end = text.find('\n', begin)
        end = len(text) if end < 0 else end
        line, begin, number = text[begin:end], end + 1, number + 1
        if line and not line.isspace():
            yield number, line


def check_names(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return class `names`. Raises ValueError, beginning with `where`, when there are none or one occurs twice."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if not names:
        raise ValueError(f'{where}: names no class')
    if repeated:
        raise ValueError(f'{where}: {", ".join(repeated[:SHOWN])} is named twice')
    return names


def read_class_names(classes: str | tuple[str, ...], root: Path) -> tuple[str, ...]:
    """Class names: `classes` itself, or the lines of the file below `root` that it names.

    Raises FileNotFoundError and ValueError.
    """
    if isinstance(classes, tuple):
        return check_names(classes, 'data.classes')
    check_folder(root)
    path = root / check_inside(classes, root, 'data.classes')
    return check_names(tuple(line.strip() for _, line in read_lines(path)), str(path))


def parse_xml(data: bytes, path: Path) -> ElementTree.Element:
    """Root of an XML file. Raises AnnotationError, also for a document type: its entities can grow or read files."""
    text = _decode_xml(data, path)
    if '<!DOCTYPE' in text or '<!ENTITY' in text:
        raise AnnotationError(f'{path}: has a document type; annotations need none, remove it')
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise AnnotationError(f'{path}: is not well-formed XML ({error})') from None


def marked_encoding(data: bytes) -> str | None:
    """Encoding of the byte order mark, if there is one."""
    return next((name for bom, name in MARKS.items() if data.startswith(bom)), None)


def _decode_xml(data: bytes, path: Path) -> str:
    """Text of an XML file: by its byte order mark, else in the encoding that it declares, else as UTF-8.

    Raises AnnotationError.
    """
    # A byte order mark is right even if the declaration says otherwise: editors convert files without changing it.
    declared = re.match(rb'\s*<\?xml[^>]*\bencoding=["\']([\w.:-]+)', data)
    # Three candidates, most reliable first: byte order mark, declaration, UTF-8.
    mark = marked_encoding(data)
    named = declared[1].decode() if declared else 'UTF-8'
    for encoding in (mark,) if mark else (CHINESE.get(named.lower(), named), 'utf-8'):
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            if '\0' not in (text := data.decode(encoding)):
                return text
    raise AnnotationError(f'{path}: is not {named} text, its declared or default encoding; save it as UTF-8')
