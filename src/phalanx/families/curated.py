"""Optional parts of the seam: a Task whose data sets can be surveyed, or rewritten in other formats."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from phalanx.data.samples import Image, Split


class Survey(Protocol):
    """The samples of one split as they lie in their files, before any transform; picklable.

    Class k is drawn in colour k of `phalanx.data.image.palette`.
    """

    @property
    def class_names(self) -> Sequence[str]:
        """The classes that ought to occur; empty where classes are whatever is found, such as characters."""

    @property
    def unit(self) -> str:
        """Unit of the class counts: pixels, boxes, characters."""

    @property
    def notes(self) -> Sequence[str]:
        """Oddities of the annotations, as training reports them; mostly empty."""

    @property
    def cures(self) -> Mapping[str, str]:
        """Of names in brackets that `count` gives, what cannot be learned from such samples, and what to do about it.

        A name may stand for those that go on after it: `(not in the dictionary)` for `(not in the dictionary) €`.
        """

    def __len__(self) -> int: ...
    @property
    def when_absent(self) -> str:
        """The fix when a class never occurs, but other things in brackets do."""

    def name(self, index: int) -> str:
        """The name of the sample for people: the path of its image, mostly."""

    def count(self, index: int) -> tuple[Image, Mapping[str, int]]:
        """The image, and how many units of each class are in it, other things too under names in brackets.

        Raises SampleError when a file cannot be read, does not fit the other, or says what has no meaning.
        """

    def picture(self, index: int) -> Image:
        """The image with its annotation drawn over it."""


@runtime_checkable
class Surveyed(Protocol):
    """A Task whose data can be checked."""

    def survey(self, split: Split) -> Survey:
        """Raises OSError or ValueError, naming paths and lines, when files are missing or lists malformed."""


@runtime_checkable
class Rewritable(Protocol):
    """A Task whose data can be written in other formats."""

    @property
    def rewritten_as(self) -> tuple[str, ...]:
        """The names of those formats."""

    def rewrite(self, split: Split, out: Path, *, form: str) -> Mapping[str, object]:
        """Writes a split below `out`, and returns the keys of `data` that read it. Raises SampleError, OSError, ValueError."""
