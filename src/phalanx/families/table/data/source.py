"""What a data set of tables gives: a Data tells the splits, a Source reads the tables of one split."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from phalanx.data.samples import Image, Split
from phalanx.families.table.annotation import Table
from phalanx.families.table.tokens import Vocabulary


class Source(Protocol):
    """The tables of one split."""

    def __len__(self) -> int: ...
    def check_files(self) -> None:
        """Raises FileNotFoundError, naming the first, when files of tables are missing; reads none of them."""

    def name(self, index: int) -> str:
        """What a person calls the table: the path of its image, mostly."""

    def read(self, index: int) -> tuple[Image, Table]:
        """An image [H, W, 3] of a table, and what is in it. Raises SampleError."""

    def lengths(self, vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
        """[N] how many tokens each table has; without reading images."""


class Data(Protocol):
    """A data set, as a recipe describes it."""

    def split(self, split: Split) -> Source:
        """Raises FileNotFoundError or ValueError, naming paths and lines, when files are missing or malformed."""
