"""What a segmentation data set gives: a Data tells the classes and the splits, a Source reads the samples of one split."""

from __future__ import annotations

from typing import Protocol

from phalanx.data.image import LabelMap
from phalanx.data.samples import Image, Split


class Source(Protocol):
    """The samples of one split."""

    def __len__(self) -> int: ...
    def check_files(self) -> None:
        """Raises FileNotFoundError, naming the first, when files of samples are missing; reads none of them."""

    def name(self, index: int) -> str:
        """What a person calls the sample: the path of its image, mostly."""

    def read(self, index: int) -> tuple[Image, LabelMap]:
        """An image [H, W, 3] and its label map [H, W]: class ids, VOID where nothing is judged. Raises SampleError."""


class Data(Protocol):
    """A data set, as a recipe describes it."""

    @property
    def class_names(self) -> tuple[str, ...]: ...
    def split(self, split: Split) -> Source:
        """Raises FileNotFoundError or ValueError, naming paths and lines, when files are missing or lists malformed."""
