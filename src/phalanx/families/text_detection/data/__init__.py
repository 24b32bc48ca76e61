"""Data sets of text detection: sources of images with the outlines of their texts, one per split.

To add one: a file here with a class whose keyword-only parameters are the options of `data:` in a recipe, and a line in DATA.
Its constructor reads no files, so that a finished run can be used without its data set; `check_files` looks for every image, so
that a missing one is reported before training starts.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from phalanx.data import mixing
from phalanx.families.text_detection.data.coco_text import CocoText
from phalanx.families.text_detection.data.drawn_pages import DrawnPages
from phalanx.families.text_detection.data.icdar import Icdar2015
from phalanx.families.text_detection.data.label_files import LabelFiles
from phalanx.families.text_detection.data.shards import Shards
from phalanx.families.text_detection.data.source import Data, Source, Texts
from phalanx.families.text_detection.data.total_text import TotalText


class Mixture(mixing.Mixture):
    """Several data sets as one."""

    def __init__(self, *, parts: tuple[Annotated[partial[Data], DATA], ...], train_shares: tuple[float, ...] = ()) -> None:
        super().__init__(parts, train_shares)


DATA = {
    'label_files': LabelFiles,
    'icdar2015': Icdar2015,
    'total_text': TotalText,
    'coco_text': CocoText,
    'shards': Shards,
    'drawn_pages': DrawnPages,
    'mixture': Mixture,
}

__all__ = ['DATA', 'Data', 'Source', 'Texts']
