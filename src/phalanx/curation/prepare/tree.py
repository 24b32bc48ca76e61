"""Files below a folder, and lookup of images by the names that annotations give them."""

import csv
import io
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from phalanx.curation.prepare.coco_content import load_coco
from phalanx.curation.prepare.samples import LeftOut, SplitName
from phalanx.data.checks import AnnotationError, check_pointer, parse_json, shorten, size_of
from phalanx.data.folders import decode_text, marked_encoding

IMAGES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.gif', '.ppm', '.pgm')
PACKED, TEXTS = ('.gz', '.bz2', '.xz', '.zst'), ('.json', '.jsonl', '.xml', '.csv', '.tsv', '.txt')
APART = re.compile(r'["<>=,\r\n\t]')  # what stands around the name of an image in a damaged file
NAME = re.compile(rf'.+(?:{"|".join(map(re.escape, IMAGES))})', re.IGNORECASE)
UPLOADED = re.compile(r'(?:^|(?<=/))[0-9a-f]{8}-(?=[^/]+$)')  # before the name of a file
MOST_TEXT = 2**29  # bytes of an annotation file that is parsed as a whole
MOST_LINES = 2**33  # of one whose lines are parsed one by one: Open Images has 2 GiB, PubTabNet 4
LINES = ('.csv', '.tsv', '.jsonl', '.ndjson', '.txt')
SPLITS: dict[str, SplitName] = {
    **dict.fromkeys(('train', 'training', 'trainval', 'trn'), 'train'),
    **dict.fromkeys(('val', 'valid', 'validation', 'eval', 'evaluation', 'dev'), 'val'),
    **dict.fromkeys(('test', 'testing', 'tst'), 'test'),
}


class Tree:
    """All files below `root` that are not hidden, in order."""

    def __init__(self, root: Path, masks: str = '', labels: str = '') -> None:
        """`masks`: the folder of the masks, or a pattern of their names, where these are not the usual ones; `labels`: the
        folder of the files with annotations."""
        self.root, self.masks, self.labels = root, masks, labels
        self.files: list[Path] = []
        self.links: dict[Path, Path] = {}  # folders below `root` by links to them, whose files are read below one name only
        known = {os.path.realpath(root)}
        for folder, folders, names in os.walk(root, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith(('.', '__MACOSX')))
            for name in [name for name in folders if not _is_new(Path(folder, name), known)]:
                self.links[Path(folder, name)] = Path(root, os.path.relpath(Path(folder, name).resolve(), root.resolve()))
                folders.remove(name)
            self.files += [Path(folder, name) for name in sorted(names) if not name.startswith('.')]
        self.use_images([path for path in self.files if path.suffix.lower() in IMAGES])
        self.size = cache(size_of)  # (width, height) of an image; raises AnnotationError
        # messages about files of annotations that cannot be read
        packed = (path for path in self.files if path.suffix.lower() in PACKED and Path(path.stem).suffix.lower() in TEXTS)
        self.doubtful = defaultdict[str, set[Path]](set)  # suffix of damaged files -> images on which they may have objects
        self.unreadable = LeftOut(f'{path}: is compressed, so it was not read; unpack it' for path in packed)

    def use_images(self, images: list[Path]) -> None:
        """Let these be the images, and no others."""
        self.images = images
        self._named, self._stems = defaultdict[str, list[Path]](list), defaultdict[str, list[Path]](list)
        for path in images:
            self._named[fold(path.name)].append(path)
            self._stems[fold(path.stem)].append(path)

    def is_below(self, path: Path, folder: str) -> bool:
        """True if `path` lies below a folder of this name, or of several names one in the other (`data/labels`)."""
        own, wanted = path.relative_to(self.root).parts[:-1], Path(folder).parts
        return any(own[n : n + len(wanted)] == wanted for n in range(len(own)))

    def having(self, *suffixes: str) -> list[Path]:
        """Files with one of these suffixes; those of annotations only below `labels`, if it was given."""
        there = [path for path in self.files if path.suffix.lower() in suffixes]
        return [path for path in there if not self.labels or self.is_below(path, self.labels) or _names_all(path)]

    @cached_property
    def jsons(self) -> dict[Path, Any]:
        """Content of the JSON files, read once for all JSON formats; a `CocoContent` for the format of COCO."""
        found = {}
        for path in self.having('.json'):
            with self.unreadable.catch(), self.doubting(path):
                found[path] = load_coco(path) or parse_json(read_bytes(path), path)
        return found

    @contextmanager
    def doubting(self, path: Path) -> Iterator[None]:
        """Add the images that a damaged file names to `doubtful` if the block raises AnnotationError, which goes on."""
        try:
            yield
        except AnnotationError:
            data = read_bytes(path).decode('utf-8', 'ignore')
            for name in filter(None, map(NAME.match, APART.split(data.replace('\\/', '/')))):
                plain = re.sub(r'\\u([0-9a-fA-F]{4})', lambda code: chr(int(code[1], 16)), name[0])
                self.doubtful[path.suffix.lower()].update(self._named.get(fold(re.split(r'[/\\]', plain)[-1].strip()), []))
            raise

    def image(self, name: str, beside: Path, where: str) -> Path:
        """Find the image that the annotation file `beside` calls `name`. Raises AnnotationError.

        Files get moved, so images match by name or stem. Of several, the one that shares most trailing folders with
        `name` wins, then one of the same split, then the one nearest to the annotation.
        """
        parts, known = tuple[str, ...](), list[Path]()
        for plain in spellings(unicodedata.normalize('NFC', name).replace('\\', '/')):
            parts = PurePosixPath(plain).parts
            last = parts[-1].lower() if parts else ''
            known = self._named.get(last) or self._stems.get(last) or self._stems.get(PurePosixPath(last).stem) or []
            if known:
                break
        if not known:
            raise AnnotationError(f'{where}: there is no image {shorten(name)}')
        if len(known) == 1:
            return known[0]
        split = self.split_of(beside)
        ranked = sorted(
            ((_alike(path, parts), bool(split) and self.split_of(path) == split, nearness(path, beside)), path)
            for path in known
        )
        if ranked[-1][0] == ranked[-2][0] and not ranked[-1][1].samefile(ranked[-2][1]):
            raise AnnotationError(f'{where}: {shorten(name)} may be {ranked[-1][1]} or {ranked[-2][1]}')
        return ranked[-1][1]

    def images_named(self, name: str, beside: Path) -> list[Path]:
        """The image that the list `beside` names; of several in folders side by side (an image and its mask) all."""
        try:
            return [self.image(name, beside, '')]
        except AnnotationError:
            stem = fold(PurePosixPath(name.replace('\\', '/')).name)
            alike = self._named.get(stem) or self._stems.get(stem) or []
            return alike if len({path.parent.parent for path in alike}) == 1 else []

    def has_image(self, name: str) -> bool:
        """True if some image has this name, in whatever folder."""
        return fold(PurePosixPath(name.replace('\\', '/')).name) in self._named

    def has_stem(self, stem: str) -> bool:
        """True if some image has this name without suffix, in whatever folder."""
        return fold(stem) in self._stems

    def split_of(self, file: Path, said: str = '') -> SplitName:
        """Split named by `said`, else by the annotation file or the nearest folder; empty if none is."""
        parts = file.relative_to(self.root).parts
        return split_in(parts if file.suffix.lower() not in IMAGES else parts[:-1], said)


def fold(name: str) -> str:
    """Name as it is compared: in lower case, with composed letters (macOS stores `u` and two dots where files say `ü`)."""
    return (name if name.isascii() else unicodedata.normalize('NFC', name)).lower()


def spellings(name: str) -> list[str]:
    """A name as it is written, as an address (`a%20b`), and without what Label Studio puts before uploaded files."""
    plain = unquote(name)
    return list(dict.fromkeys([name, plain, UPLOADED.sub('', plain)]))


def split_in(parts: Sequence[str], said: str = '') -> SplitName:
    """Split named by `said`, else by the last part of a path that names one; empty if none does."""
    words = (word for part in reversed(parts) for word in reversed(re.split(r'[^a-z]+', part.lower())))
    return next((SPLITS[word] for word in (said.lower(), *words) if word in SPLITS), '')


def _is_new(folder: Path, known: set[str]) -> bool:
    """True if the files of a folder are read below no other name; then its real path is added to `known`."""
    real = os.path.realpath(folder)
    if real in known or (folder.is_symlink() and any(Path(real).is_relative_to(other) for other in known)):
        return False
    known.add(real)
    return True


def _names_all(path: Path) -> bool:
    """True for files about all images: settings, and lists of splits or classes."""
    return path.suffix.lower() in ('.yaml', '.yml', '.data') or path.stem.lower() in SPLITS


def _alike(path: Path, parts: tuple[str, ...]) -> int:
    """Count the trailing folders that a path shares with a name."""
    folders = list(zip(reversed(path.parts[:-1]), reversed(parts[:-1]), strict=False))
    return next((place for place, (one, other) in enumerate(folders) if one != other), len(folders))


def nearness(path: Path, other: Path) -> int:
    """Score of nearness: common folders count 100 each, less the depth of `path`."""
    common = len(Path(os.path.commonpath([path, other])).parts)
    return 100 * common - len(path.parts)


def read_bytes(path: Path) -> bytes:
    """Read the bytes of an annotation file. Raises AnnotationError."""
    with _opened(path) as file:
        data = file.read()
    check_pointer(data, path)
    return data


def read_lines(path: Path) -> Iterator[bytes]:
    """Read the lines of an annotation file one after the other, in UTF-8 and not decoded: PubTabNet has 4 GiB.

    Raises AnnotationError.
    """
    with _opened(path) as file:
        if marked_encoding(file.peek(4)):
            yield from io.BytesIO(read_text(path).encode())
        else:
            yield from file


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    try:
        most = MOST_LINES if path.suffix.lower() in LINES else MOST_TEXT
        if path.stat().st_size > most:
            raise AnnotationError(f'{path}: has more than {most >> 20} MiB; split it into several files')
        with path.open('rb') as file:
            yield file
    except OSError as error:
        raise AnnotationError(f'{path}: cannot be read: {error.strerror}') from None


def read_text(path: Path) -> str:
    """Read the text of an annotation file. Raises AnnotationError."""
    return decode_text(read_bytes(path), path)


def read_records(text: str, delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each record of a CSV file, with the number of its first line. Raises AnnotationError."""
    lines = (line[0] for line in re.finditer(r'[^\n]*\n|[^\n]+', text))  # a text may hold other ends of lines, as U+2028
    csv.field_size_limit(MOST_TEXT)  # run lengths of a large image take more than the 128 KiB of Python
    reader, begin = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True), 1
    try:
        for cells in reader:
            yield begin, cells
            begin = reader.line_num + 1
    except csv.Error as error:
        cure = 'a text with quotes stands in quotes, and those in it are doubled'
        raise AnnotationError(f'{path}:{begin}: is not CSV: {error} (line {reader.line_num}); {cure}') from None
