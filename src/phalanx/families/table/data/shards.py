"""Images of tables in shards of WebDataset (tar) or MosaicML Streaming (MDS)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phalanx.data.folders import Problems
from phalanx.data.samples import Draw, Image, Split
from phalanx.data.shards import ShardData, ShardSource
from phalanx.data.shards import Shards as Opened
from phalanx.families.table.annotation import Table
from phalanx.families.table.data.pubtabnet import count_tokens, read_table
from phalanx.families.table.tokens import Vocabulary


@dataclass(kw_only=True)
class Shards(ShardData):
    """Images and their tables in shards below `root`.

    `train`, `eval`: a folder of .tar files or MDS shards, or names of tar files with `*` or `{000..123}`. `image`, `table`: the
    field (suffix, column) of each, `;` between alternatives. A table is JSON as in a line of PubTabNet: `html` with
    `structure.tokens` and `cells`.
    """

    table: str = 'json;table;annotations;label'

    def split(self, split: Split) -> ShardTables:
        """Open the shards of a split. Raises FileNotFoundError, and ValueError with all annotations that are no table."""
        return ShardTables(self.open(split, 'table', self.table))


class ShardTables(ShardSource):
    """Source of the tables in shards."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened)
        problems, counts = Problems(), np.zeros((len(opened), 2), np.int64)
        for index in range(len(opened)):
            with problems:
                counts[index] = count_tokens(self.shards.annotation(index, 1).encode(), str(self.shards.label(index, 1)))
        problems.check()
        self.tokens, self.plain = counts.T

    def digest(self) -> bytes:
        return super().digest() + self.tokens.tobytes() + self.plain.tobytes()

    def lengths(self, vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
        return self.tokens - self.plain if vocabulary.merge_cells else self.tokens

    def read(self, draw: Draw) -> tuple[Image, Table]:
        """Raises SampleError."""
        table = read_table(self.shards.data(draw.index, 1), str(self.shards.label(draw.index, 1)))
        return self.shards.image(draw.index, 0), table
