"""Sources of image files that annotations list."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from phalanx.data.folders import check_present
from phalanx.data.image import read_image
from phalanx.data.samples import Draw, Image

T = TypeVar('T')  # annotation of an image


class Packed(Sequence[str]):
    """Strings in one block of memory: reference counts of millions of strings would make each worker copy their pages."""

    def __init__(self, strings: Sequence[str]) -> None:
        # surrogateescape: file names need not be valid UTF-8.
        encoded = [text.encode('utf-8', 'surrogateescape') for text in strings]
        self._block = b''.join(encoded)
        self._ends = np.cumsum([0, *map(len, encoded)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:  # type: ignore[override] # no slices
        return self._block[self._ends[index] : self._ends[index + 1]].decode('utf-8', 'surrogateescape')


@dataclass(frozen=True)
class Files:
    """Base of a Source of image files."""

    root: Path
    paths: Sequence[str]  # of the images, relative to it

    def __len__(self) -> int:
        return len(self.paths)

    def check_files(self) -> None:
        check_present(self.root, self.paths)

    def name(self, index: int) -> str:
        return str(self.root / self.paths[index])


@dataclass(frozen=True)
class Listed(Files, Generic[T]):
    """Source of image files with one annotation (`truths`) per file."""

    truths: Sequence[T]
    notes: Mapping[str, int] = field(default_factory=dict)  # oddities of the annotations and their number

    def read(self, draw: Draw) -> tuple[Image, T]:
        return read_image(self.name(draw.index)), self.truths[draw.index]
