"""Sources of image files that annotations list."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from phalanx.data.folders import check_present
from phalanx.data.image import read_image
from phalanx.data.samples import Draw, Image

T = TypeVar('T')  # annotation of an image


class Packed(Sequence[str]):
    """Strings in one block of memory: reference counts of millions of strings would make each worker copy their pages.

    Arrays, which the ranks of a node share (`system.shared`).
    """

    def __init__(self, block: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> None:
        """`block`: all strings in UTF-8; `ends`: [N + 1] a zero, and the end of each of the N strings in it."""
        self._block, self._ends = block, ends

    @classmethod
    def of(cls, strings: Iterable[str]) -> Packed:
        packer = Packer()
        for text in strings:
            packer.append(text)
        return packer.pack()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:  # type: ignore[override] # no slices
        return self._block[self._ends[index] : self._ends[index + 1]].tobytes().decode('utf-8', 'surrogateescape')

    def __iter__(self) -> Iterator[str]:
        begin = 0
        for end in map(int, self._ends[1:]):
            yield self._block[begin:end].tobytes().decode('utf-8', 'surrogateescape')
            begin = end

    def digest(self) -> bytes:
        """Digest of the strings, much cheaper than going through them."""
        return digest_arrays(self._ends, self._block)


class Packer:
    """Collector of strings for a Packed."""

    def __init__(self) -> None:
        self._block, self._ends = bytearray(), array('q', [0])

    def append(self, text: str) -> None:
        self._block += text.encode('utf-8', 'surrogateescape')  # file names need not be valid UTF-8
        self._ends.append(len(self._block))

    def pack(self) -> Packed:
        """Return all strings; none can be added afterwards."""
        return Packed(np.frombuffer(self._block, np.uint8), np.frombuffer(self._ends, np.int64))


def digest_arrays(*arrays: npt.NDArray[Any]) -> bytes:
    """Digest of the content of arrays and their lengths."""
    digest = hashlib.sha256()
    for values in arrays:
        digest.update(values.nbytes.to_bytes(8, 'big') + np.ascontiguousarray(values).data)
    return digest.digest()


def find_contradictions(paths: Sequence[int], truth: Callable[[int], object]) -> tuple[int, int]:
    """Count the paths (as hashes, one per entry) with different truths; return it and the first entry that contradicts another.

    `truth` returns that of an entry; it is called for repeated paths only.
    """
    order = np.argsort(paths, kind='stable')
    of_path = np.asarray(paths)[order]
    pairs = ((int(order[place]), int(order[place + 1])) for place in np.flatnonzero(of_path[1:] == of_path[:-1]))
    found = [later for earlier, later in pairs if truth(earlier) != truth(later)]
    return len({paths[entry] for entry in found}), min(found, default=0)


@dataclass(frozen=True)
class Files:
    """Base of a Source of image files."""

    root: Path
    paths: Sequence[str]  # of the images, relative to it

    def __len__(self) -> int:
        return len(self.paths)

    def check_files(self) -> None:
        check_present(self.root, self.paths)

    def digest(self) -> bytes:
        """Digest of the paths."""
        return (self.paths if isinstance(self.paths, Packed) else Packed.of(self.paths)).digest()

    def name(self, index: int) -> str:
        return str(self.root / self.paths[index])


@dataclass(frozen=True)
class Listed(Files, Generic[T]):
    """Source of image files with one annotation (`truths`) per file."""

    truths: Sequence[T]
    notes: Mapping[str, int] = field(default_factory=dict)  # oddities of the annotations and their number

    listings: Sequence[Path] = ()  # the text files that name the images

    def check_files(self) -> None:
        check_present(self.root, self.paths, listings=self.listings)

    def read(self, draw: Draw) -> tuple[Image, T]:
        return read_image(self.name(draw.index)), self.truths[draw.index]
