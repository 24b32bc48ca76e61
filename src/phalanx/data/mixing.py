"""Several data sets as one: drawn text beside photographs, say."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from phalanx.data.samples import Draw, Image, Source, Split


class Mixture:
    """The training samples of all `parts`, and the evaluation samples of the first.

    `train_shares`: how much of each part an epoch takes, 1 being all of it once, 10 all of it ten times; all 1 when there are
    none. Raises ValueError without parts, or with shares of another number.
    """

    def __init__(self, parts: Sequence[partial[Any]], train_shares: Sequence[float]) -> None:
        if not parts:
            raise ValueError('a mixture needs at least one part')
        self.shares = shares_of(parts, train_shares, 'parts')
        self.parts = [part() for part in parts]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Those of all parts. Raises ValueError when these differ."""
        first, *others = (tuple(part.class_names) for part in self.parts)
        for number, other in enumerate(others, 1):
            if other != first:
                raise ValueError(f'data.parts: {number} has other classes than 0: {", ".join(other)}, not {", ".join(first)}')
        return first

    def split(self, split: Split) -> Any:
        if split == 'eval':
            return self.parts[0].split('eval')
        return Shares([part.split('train') for part in self.parts], self.shares)


def shares_of(things: Sequence[object], train_shares: Sequence[float], called: str) -> Sequence[float]:
    """`train_shares`, one for each of the things that are `called` so, or all 1 when there are none. Raises ValueError."""
    if train_shares and len(train_shares) != len(things):
        raise ValueError(f'there are {len(things)} {called}, but {len(train_shares)} train_shares')
    return train_shares or (1.0,) * len(things)


class Shares:
    """Several sources as one: of each `share` times its length in an epoch, 0.1 a tenth, 3 everything thrice.

    Which samples make up a broken share is a function of (seed, epoch): over the epochs all of them get their turn.
    """

    def __init__(self, sources: Sequence[Source[Any]], shares: Sequence[float]) -> None:
        """Raises ValueError unless there are sources, one share above 0 for each, and samples that they amount to."""
        if not sources:
            raise ValueError('data: names nothing that samples could come from')
        if len(shares) != len(sources):
            raise ValueError(f'there are {len(sources)} sources of samples, but {len(shares)} shares')
        if min(shares) <= 0:
            raise ValueError(f'shares must be above 0, got {", ".join(map(str, shares))}')
        self.sources, self.shares = tuple(sources), tuple(shares)
        counts = [round(len(source) * share) for source, share in zip(sources, shares, strict=True)]
        self._starts = [0, *accumulate(counts)]
        if not len(self):
            raise ValueError(f'the shares {", ".join(map(str, shares))} of so few samples leave none')

    def __len__(self) -> int:
        return self._starts[-1]

    def check_files(self) -> None:
        for source in self.sources:
            source.check_files()

    def name(self, index: int) -> str:
        part, place = self._part(index)
        source, whole = self.sources[part], int(self.shares[part])
        if place < whole * len(source):
            return source.name(place % len(source))
        return f"sample {place - whole * len(source)} of the epoch's share of {source.name(0)} and those after it"

    def read(self, draw: Draw) -> tuple[Image, Any]:
        part, place = self._part(draw.index)
        source, (rounds, index) = self.sources[part], divmod(place, len(self.sources[part]))
        if rounds == int(self.shares[part]):  # the broken share
            index = _drawn(index, len(source), part, draw)
        return source.read(draw.of(index))

    @property
    def notes(self) -> Mapping[str, int]:
        """What was odd about the annotations of all, and how often, where sources count that."""
        counts: Counter[str] = Counter()
        for source in self.sources:
            counts.update(getattr(source, 'notes', {}))
        return counts

    def each(self, change: Callable[[Any], Source[Any]]) -> Shares:
        """The same shares of what `change` makes of the sources."""
        return Shares([each_of(source, change) for source in self.sources], self.shares)

    def _part(self, index: int) -> tuple[int, int]:
        """Which source, and which of its places."""
        part = bisect_right(self._starts, index) - 1
        return part, index - self._starts[part]


def each_of(source: Any, change: Callable[[Any], Source[Any]]) -> Source[Any]:
    """What `change` makes of `source`; of a mixture, the same mixture of what it makes of the parts."""
    return source.each(change) if isinstance(source, Shares) else change(source)


def _drawn(place: int, size: int, part: int, draw: Draw) -> int:
    """The `place`-th of the samples that stand for a source of `size` in this epoch; no two places have the same one.

    Steps of one random width round the circle of samples: a permutation that needs no memory, however many there are.
    """
    rng = np.random.default_rng((draw.seed, 3, draw.epoch, part))
    first, step = int(rng.integers(size)), int(rng.integers(size))
    while math.gcd(step, size) != 1:  # else it would come round too early
        step += 1
    return (first + place * step) % size
