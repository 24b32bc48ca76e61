"""Several data sets as one: drawn text beside photographs, say."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from phalanx.data.samples import Split
from phalanx.families.recognition.data.digit_lines import DigitLines
from phalanx.families.recognition.data.label_files import LabelFiles
from phalanx.families.recognition.data.lmdb_sets import LmdbSets
from phalanx.families.recognition.data.rendered import Rendered
from phalanx.families.recognition.data.source import Data, Shares, Source

PARTS = {'digit_lines': DigitLines, 'label_files': LabelFiles, 'lmdb_sets': LmdbSets, 'rendered': Rendered}


class Mixture:
    """The training samples of all `parts`, and the evaluation samples of the first.

    `train_shares`: how much of each part an epoch takes, 1 being all of it once, 10 all of it ten times; all 1 when there are
    none.
    """

    def __init__(self, *, parts: tuple[Annotated[partial[Data], PARTS], ...], train_shares: tuple[float, ...] = ()) -> None:
        if not parts:
            raise ValueError('a mixture needs at least one part')
        if train_shares and len(train_shares) != len(parts):
            raise ValueError(f'there are {len(parts)} parts, but {len(train_shares)} train_shares')
        self.parts, self.shares = [part() for part in parts], train_shares or (1.0,) * len(parts)

    def split(self, split: Split) -> Source:
        if split == 'eval':
            return self.parts[0].split('eval')
        return Shares([part.split('train') for part in self.parts], self.shares)
