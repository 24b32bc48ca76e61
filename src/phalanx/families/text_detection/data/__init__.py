"""Data sets of text detection: each gives a Source of images with the outlines of their texts for each split.

To add one: a file here with a class whose keyword-only parameters are the options of `data:` in a recipe, and a line in DATA.
To construct it reads nothing, so that a trained run works where its images are not; `check_files` looks for every file, so that
a missing one is reported before training starts.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from phalanx.data import mixing
from phalanx.families.text_detection.data.coco_text import CocoText
from phalanx.families.text_detection.data.drawn_pages import DrawnPages
from phalanx.families.text_detection.data.icdar import Icdar2015
from phalanx.families.text_detection.data.label_files import LabelFiles
from phalanx.families.text_detection.data.source import Data, Source, Texts
from phalanx.families.text_detection.data.total_text import TotalText


class Mixture(mixing.Mixture):
    def __init__(self, *, parts: tuple[Annotated[partial[Data], DATA], ...], train_shares: tuple[float, ...] = ()) -> None:
        super().__init__(parts, train_shares)


DATA = {
    'label_files': LabelFiles,
    'icdar2015': Icdar2015,
    'total_text': TotalText,
    'coco_text': CocoText,
    'drawn_pages': DrawnPages,
    'mixture': Mixture,
}

__all__ = ['DATA', 'Data', 'Source', 'Texts']
