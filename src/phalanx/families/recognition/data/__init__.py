"""Data sets of recognition: sources of images with texts, one per split.

To add one: a file here with a class whose keyword-only parameters are the options of `data:` in a recipe, and a line in DATA.
Its constructor reads no files, so that a finished run can be used without its data set; `split` reads the label files and
`check_files` looks for every image, so that a missing file is reported before training starts.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from phalanx.data import mixing
from phalanx.families.recognition.data.digit_lines import DigitLines
from phalanx.families.recognition.data.label_files import LabelFiles
from phalanx.families.recognition.data.lmdb_sets import LmdbSets
from phalanx.families.recognition.data.rendered import Rendered
from phalanx.families.recognition.data.shards import Shards
from phalanx.families.recognition.data.source import Data, Source


class Mixture(mixing.Mixture):
    """Several data sets as one."""

    def __init__(self, *, parts: tuple[Annotated[partial[Data], DATA], ...], train_shares: tuple[float, ...] = ()) -> None:
        super().__init__(parts, train_shares)


DATA = {
    'digit_lines': DigitLines,
    'label_files': LabelFiles,
    'lmdb_sets': LmdbSets,
    'rendered': Rendered,
    'shards': Shards,
    'mixture': Mixture,
}

__all__ = ['DATA', 'Data', 'Source']
