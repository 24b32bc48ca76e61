"""Data sets of tables: each gives a Source of images with annotated tables for each split.

To add one: a file here with a class whose keyword-only parameters are the options of `data:` in a recipe, and a line in DATA.
To construct it reads nothing, so that a trained run works where its images are not; `split` looks for every file, so that a
missing one is reported before training starts.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Protocol

import numpy as np
import numpy.typing as npt

from phalanx.data import mixing, samples
from phalanx.families.table.annotation import Table
from phalanx.families.table.data.pubtabnet import PubTabNet, icdar2013_tables
from phalanx.families.table.data.rendered import RenderedTables
from phalanx.families.table.tokens import Vocabulary


class Source(samples.Source[Table], Protocol):
    """The tables of one split."""

    def lengths(self, vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
        """[N] how many tokens each table has; without reading images."""


Data = samples.Data[Source]


class Mixture(mixing.Mixture):
    def __init__(self, *, parts: tuple[Annotated[partial[Data], DATA], ...], train_shares: tuple[float, ...] = ()) -> None:
        super().__init__(parts, train_shares)


DATA = {'rendered_tables': RenderedTables, 'pubtabnet': PubTabNet, 'icdar2013_tables': icdar2013_tables, 'mixture': Mixture}
