"""PubTabNet, and data sets in its format: JSON Lines, one image annotation per line.

Zhong et al., https://arxiv.org/abs/1911.10683: 568,000 tables of scientific articles. A line has `filename`, `split` and
`html` with `structure.tokens` and `cells`; cells with text have `tokens` and a `bbox` in pixels.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from phalanx.data.checks import AnnotationError, parse_json
from phalanx.data.folders import check_file, check_folder, check_inside, check_present
from phalanx.data.image import read_image
from phalanx.data.listed import Packed, digest_arrays
from phalanx.data.samples import Draw, Image, SampleError, Split
from phalanx.data.tables import parse_annotation
from phalanx.families.table.annotation import Cell, Table
from phalanx.families.table.tokens import Vocabulary

SPLIT = re.compile(rb'"split":\s*"(\w+)"')
FILENAME = re.compile(rb'"filename":\s*("[^"]*")')
STRUCTURE = re.compile(rb'"structure":\s*\{\s*"tokens":\s*')


@dataclass(frozen=True, kw_only=True)
class PubTabNet:
    """PubTabNet in the layout of its archive: PubTabNet_2.0.0.jsonl and the images in train/ and val/.

    `train`, `eval`: annotation files below `root`. `train_split`, `eval_split`: use the lines with this `split`, and lines
    without any; null uses all lines. `train_images`, `eval_images`: image folders below `root`. For the examples in
    PubTabNet's repository: `train: PubTabNet_Examples.jsonl, train_images: examples`, and
    the same for `eval` with `eval_split: train`.
    """

    root: Path
    train: str = 'PubTabNet_2.0.0.jsonl'
    eval: str = 'PubTabNet_2.0.0.jsonl'
    train_images: str = 'train'
    eval_images: str = 'val'
    train_split: str | None = 'train'
    eval_split: str | None = 'val'

    def split(self, split: Split) -> Lines:
        check_folder(self.root)
        if split == 'train':
            return Lines(self.root / self.train, self.root / self.train_images, self.train_split)
        return Lines(self.root / self.eval, self.root / self.eval_images, self.eval_split)


def icdar2013_tables(*, root: Path) -> PubTabNet:
    """Tables of the ICDAR 2013 competition (Goebel et al. 2013), cropped from their pages and annotated as in PubTabNet.

    Files: icdar2013.jsonl and images/. The tables have no `<thead>`.
    """
    file, images = 'icdar2013.jsonl', 'images'
    return PubTabNet(root=root, train=file, eval=file, train_images=images, eval_images=images)


class Lines:
    """Source of the annotated lines of one split."""

    def __init__(self, annotations: Path, images: Path, split: str | None) -> None:
        """Index the annotations. Raises FileNotFoundError without them, ValueError for a malformed line or an absent split."""
        check_file(annotations)
        stat = annotations.stat()
        # Indexed once per file: both splits are in it, and it has gigabytes.
        lines = index_lines(annotations, stat.st_mtime_ns, stat.st_size)
        selected = np.flatnonzero((lines.splits == split) | (lines.splits == '') | (split is None))
        if len(selected) == 0:
            splits = ', '.join(np.unique(lines.splits).tolist())
            raise ValueError(f'{annotations}: no line has the split {split!r}; there are {splits or "no lines"}')
        self.annotations, self.images = annotations, images
        self.lines = Index(*(column[selected] for column in lines))  # type: ignore[arg-type]
        for name in self.lines.filenames:
            check_inside(name.decode(), images, str(annotations))

    def __len__(self) -> int:
        return len(self.lines.offsets)

    def check_files(self) -> None:
        names = Packed.of(name.decode() for name in self.lines.filenames)
        check_present(self.images, names, listings=(self.annotations,))

    def digest(self) -> bytes:
        return digest_arrays(*self.lines)

    def name(self, index: int) -> str:
        return str(self.images / self.lines.filenames[index].decode())

    def lengths(self, vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
        return self.lines.tokens - self.lines.plain if vocabulary.merge_cells else self.lines.tokens

    def read(self, draw: Draw) -> tuple[Image, Table]:
        name, number = self.name(draw.index), self.lines.numbers[draw.index]
        # One seek and one line: the annotations of a large data set do not fit in memory.
        with self.annotations.open('rb') as file:
            file.seek(self.lines.offsets[draw.index])
            line = file.readline()
        return read_image(name), read_table(line, f'{name} ({self.annotations.name}:{number})')


def read_table(line: bytes, where: str) -> Table:
    """Read a table from the JSON of a line. Raises SampleError, beginning with `where`."""
    try:
        return parse_table(parse_json(line, where), where)
    except AnnotationError as error:
        raise SampleError(str(error)) from None


def parse_table(annotation: dict[str, Any], where: str) -> Table:
    """Parse the `html` of a line. Raises AnnotationError, beginning with `where`, if it does not describe a table."""
    structure, cells = parse_annotation(annotation, where)
    return Table(structure, tuple(Cell(*cell) for cell in cells))


class Index(NamedTuple):
    """Index of the N lines of a file, which stay on disk."""

    offsets: npt.NDArray[np.int64]  # [N] in bytes
    numbers: npt.NDArray[np.int64]  # [N] line numbers from 1, for messages
    splits: npt.NDArray[np.str_]  # [N]
    filenames: npt.NDArray[np.bytes_]  # [N] bytes, not strings: reference counting would make each worker copy them
    tokens: npt.NDArray[np.int64]  # [N] number of structure tokens
    plain: npt.NDArray[np.int64]  # [N] number of these that begin a cell without spans


@cache
def index_lines(annotations: Path, modified: int, size: int) -> Index:
    """Index a file, cached while it is unchanged: indexing PubTabNet takes seconds.

    Only the structure is parsed; nine tenths of a line are cells. Raises ValueError, naming the line.
    """
    offset, offsets, numbers, splits, filenames, structures = 0, [], [], [], [], []
    with annotations.open('rb') as file:
        for number, line in enumerate(file, 1):
            if line.lstrip().startswith(b'['):
                raise ValueError(f'{annotations}:{number}: is an array; each line must be an object by itself (JSON Lines)')
            if line.strip():
                # Regular expressions: parsing half a million lines as JSON would take minutes.
                split, filename = SPLIT.search(line), FILENAME.search(line)
                if filename is None:
                    parse_json(line, f'{annotations}:{number}')  # raises ValueError for a line that is cut off
                    raise ValueError(f'{annotations}:{number}: has no filename, which every line of PubTabNet has')
                offsets.append(offset)
                numbers.append(number)
                splits.append(split[1].decode() if split else '')
                filenames.append(_filename(filename[1], annotations.parent, f'{annotations}:{number}'))
                structures.append(count_tokens(line, f'{annotations}:{number}'))
            offset += len(line)
    tokens, plain = np.array(structures, np.int64).reshape(-1, 2).T
    places = np.array(offsets, np.int64), np.array(numbers, np.int64)
    return Index(*places, np.array(splits, np.str_), np.array(filenames, np.bytes_), tokens, plain)


def _filename(word: bytes, folder: Path, where: str) -> bytes:
    """Return the file name from its JSON string. Raises ValueError for others, and for paths outside `folder`."""
    try:
        name = json.loads(word)
    except ValueError as error:
        raise ValueError(f'{where}: its filename is not JSON: {error}') from None
    return check_inside(name, folder, where).encode()


def count_tokens(line: bytes, where: str) -> tuple[int, int]:
    """Count all tokens and the `<td>` in the structure of a line. Raises ValueError."""
    if (structure := STRUCTURE.search(line)) is None:
        raise ValueError(f'{where}: has no html.structure.tokens, which every line of PubTabNet has')
    try:
        # raw_decode stops after the list, in the middle of the line.
        tokens, _ = json.JSONDecoder().raw_decode(line[structure.end() :].decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{where}: its structure is not JSON: {error}') from None
    if not isinstance(tokens, list):
        raise ValueError(f'{where}: its structure is not a list of tokens, got {str(tokens)[:40]}')
    return len(tokens) - tokens.count(''), tokens.count('<td>')
