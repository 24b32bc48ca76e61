"""What a data set of texts gives: a Data makes the splits, a Source reads the samples of one split."""

from __future__ import annotations

from typing import Protocol

from phalanx.data import samples
from phalanx.data.samples import Image, Split

TextImage = tuple[Image, str]  # [H, W, 3] RGB, and what is written in it
Source = samples.Source[str]


class Data(Protocol):
    """A data set, as a recipe describes it."""

    def split(self, split: Split) -> Source:
        """Raises FileNotFoundError or ValueError, naming paths and lines, when files are missing or lists malformed."""
