"""Optional methods of a Task: surveys of its data sets, and conversion to other formats."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from phalanx.data.samples import Image, Split


class Survey(Protocol):
    """Samples of one split before any transform; picklable.

    Class k is drawn in colour k of `phalanx.data.image.palette`.
    """

    @property
    def class_names(self) -> Sequence[str]:
        """Expected classes; empty if classes follow from the data, such as characters."""

    @property
    def unit(self) -> str:
        """Unit of the class counts: pixels, boxes, characters."""

    @property
    def notes(self) -> Sequence[str]:
        """Oddities of the annotations, also reported by training; usually empty."""

    @property
    def cures(self) -> Mapping[str, str]:
        """Consequence and fix of each problem, by its name in brackets in `count`.

        A name also covers longer ones that begin with it: `(not in the dictionary)` covers `(not in the dictionary) €`.
        """

    def __len__(self) -> int: ...
    @property
    def when_absent(self) -> str:
        """Fix for a class that never occurs while problems in brackets do."""

    def name(self, index: int) -> str:
        """Name of the sample in reports: usually the path of its image."""

    def count(self, index: int) -> tuple[Image, Mapping[str, int]]:
        """Image, and number of units per class in it; problems are counted under names in brackets.

        Raises SampleError if a file cannot be read, does not match its partner, or is invalid.
        """

    def picture(self, index: int) -> Image:
        """Image with its annotation drawn over it."""


@runtime_checkable
class Surveyed(Protocol):
    """Task whose data can be checked."""

    def survey(self, split: Split) -> Survey:
        """Survey of a split. Raises OSError or ValueError, naming paths and lines, for missing files and malformed lists."""


@runtime_checkable
class Rewritable(Protocol):
    """Task whose data can be written in other formats."""

    @property
    def rewritten_as(self) -> tuple[str, ...]:
        """Names of the formats."""

    def rewrite(self, split: Split, out: Path, *, form: str) -> Mapping[str, object]:
        """Write a split below `out`; return the keys of `data` that read it. Raises SampleError, OSError, ValueError."""
