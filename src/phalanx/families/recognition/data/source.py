"""What a data set of texts gives: a Data makes the splits, a Source reads the samples of one split."""

from collections.abc import Sequence

import numpy as np

from phalanx.data import samples
from phalanx.data.samples import Image

TextImage = tuple[Image, str]  # [H, W, 3] RGB, and what is written in it
Source = samples.Source[str]
Data = samples.Data[Source]


class Packed(Sequence[str]):
    """Strings in one block of memory: counting references to millions of strings would make every worker copy them."""

    def __init__(self, strings: Sequence[str]) -> None:
        encoded = [text.encode('utf-8', 'surrogateescape') for text in strings]
        self._block = b''.join(encoded)
        self._ends = np.cumsum([0, *map(len, encoded)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:  # type: ignore[override] # no slices
        return self._block[self._ends[index] : self._ends[index + 1]].decode('utf-8', 'surrogateescape')
