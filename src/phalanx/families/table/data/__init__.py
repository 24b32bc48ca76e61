"""Table data sets: per split a Source of images with annotated tables.

To add one: a file here with a class whose keyword-only parameters are the options of `data:` in a recipe, and a line in DATA.
The constructor reads nothing, so that a trained run works without its images; `split` looks for every file, so that missing
ones are reported before training starts.
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
from phalanx.families.table.data.shards import Shards
from phalanx.families.table.tokens import Vocabulary


class Source(samples.Source[Table], Protocol):
    """Tables of one split."""

    def lengths(self, vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
        """Return the number of tokens per table [N], without reading images."""


Data = samples.Data[Source]


class Mixture(mixing.Mixture):
    """Several table data sets as one."""

    def __init__(self, *, parts: tuple[Annotated[partial[Data], DATA], ...], train_shares: tuple[float, ...] = ()) -> None:
        super().__init__(parts, train_shares)


DATA = {
    'rendered_tables': RenderedTables,
    'pubtabnet': PubTabNet,
    'icdar2013_tables': icdar2013_tables,
    'shards': Shards,
    'mixture': Mixture,
}
