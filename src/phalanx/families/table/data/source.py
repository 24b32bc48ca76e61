"""What a data set of tables gives: a Data makes the splits, a Source reads the tables of one split."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from phalanx.data import samples
from phalanx.families.table.annotation import Table
from phalanx.families.table.tokens import Vocabulary


class Source(samples.Source[Table], Protocol):
    """The tables of one split."""

    def lengths(self, vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
        """[N] how many tokens each table has; without reading images."""


Data = samples.Data[Source]
