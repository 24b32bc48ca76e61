"""What a segmentation data set gives: a Data names the classes and the splits, a Source reads the samples of one split."""

from __future__ import annotations

from typing import Protocol

from phalanx.data import samples
from phalanx.data.image import LabelMap
from phalanx.data.samples import Split

Source = samples.Source[LabelMap]  # label maps [H, W]: class ids, VOID where pixels are ignored


class Data(Protocol):
    """A data set, as a recipe describes it."""

    @property
    def class_names(self) -> tuple[str, ...]: ...
    def split(self, split: Split) -> Source:
        """Raises FileNotFoundError or ValueError, naming paths and lines, when files are missing or lists malformed."""
