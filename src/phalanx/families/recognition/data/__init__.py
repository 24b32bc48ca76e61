"""Data sets of recognition: each gives a Source of images with their texts for each split.

To add one: a file here with a class whose keyword-only parameters are the options of `data:` in a recipe, and a line in DATA.
To construct it reads nothing, so that a trained run works where its images are not; `split` looks for every file, so that a
missing one is reported before training starts.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from phalanx.data import mixing
from phalanx.families.recognition.data.digit_lines import DigitLines
from phalanx.families.recognition.data.label_files import LabelFiles
from phalanx.families.recognition.data.lmdb_sets import LmdbSets
from phalanx.families.recognition.data.rendered import Rendered
from phalanx.families.recognition.data.source import Data, Source


class Mixture(mixing.Mixture):
    def __init__(self, *, parts: tuple[Annotated[partial[Data], DATA], ...], train_shares: tuple[float, ...] = ()) -> None:
        super().__init__(parts, train_shares)


DATA = {'digit_lines': DigitLines, 'label_files': LabelFiles, 'lmdb_sets': LmdbSets, 'rendered': Rendered, 'mixture': Mixture}

__all__ = ['DATA', 'Data', 'Source']
