"""Mixtures of data sets, for example rendered text and photographs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from phalanx.data.samples import Draw, Image, Source, Split, digest_names, files_of


class Mixture:
    """Training samples of all `parts`, evaluation samples of the first.

    `train_shares`: share of each part in an epoch; 1 is all of it once, 10 all of it ten times (default: all 1). Raises
    ValueError without parts, or when the numbers of parts and shares differ.
    """

    def __init__(self, parts: Sequence[partial[Any]], train_shares: Sequence[float]) -> None:
        if not parts:
            raise ValueError('a mixture needs at least one part')
        self.shares = check_shares(parts, train_shares, 'parts')
        self.parts = [part() for part in parts]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names, equal in all parts. Raises ValueError when they differ."""
        first, *others = (tuple(part.class_names) for part in self.parts)
        for number, other in enumerate(others, 1):
            if other != first:
                raise ValueError(f'data.parts: {number} has other classes than 0: {", ".join(other)}, not {", ".join(first)}')
        return first

    @property
    def bands(self) -> Any:
        """Bands of the images, equal in all parts. Raises ValueError when they differ."""
        first, *others = (getattr(part, 'bands', None) for part in self.parts)
        if any(other != first for other in others):
            raise ValueError('data.parts: have different bands; give all the same, with files of as many')
        return first

    def split(self, split: Split) -> Any:
        if split == 'eval':
            return self.parts[0].split('eval')
        return Shares([part.split('train') for part in self.parts], self.shares)


def check_shares(parts: Sequence[object], train_shares: Sequence[float], name: str) -> Sequence[float]:
    """Return `train_shares`, or all 1 when empty. Raises ValueError unless there is one per part (`name` in messages)."""
    if train_shares and len(train_shares) != len(parts):
        raise ValueError(f'there are {len(parts)} {name}, but {len(train_shares)} train_shares')
    return train_shares or (1.0,) * len(parts)


class Shares:
    """Several sources as one: an epoch has `share` times the samples of each (0.1: a tenth, 3: everything three times).

    The selection for a fractional share is a function of (seed, epoch): over the epochs all samples occur.
    """

    def __init__(self, sources: Sequence[Source[Any]], shares: Sequence[float]) -> None:
        """Raise ValueError unless there are sources, one positive share for each, and at least one sample."""
        if not sources:
            raise ValueError('data: needs at least one source of samples')
        if len(shares) != len(sources):
            raise ValueError(f'there are {len(sources)} sources of samples, but {len(shares)} shares')
        if min(shares) <= 0:
            raise ValueError(f'shares must be above 0, got {", ".join(map(str, shares))}')
        self.sources, self.shares = tuple(sources), tuple(shares)
        counts = [round(len(source) * share) for source, share in zip(sources, shares, strict=True)]
        self._starts = [0, *accumulate(counts)]
        if not len(self):
            raise ValueError(f'the shares {", ".join(map(str, shares))} of the data sets round to no sample at all')

    def __len__(self) -> int:
        return self._starts[-1]

    def check_files(self) -> None:
        for source in self.sources:
            source.check_files()

    def digest(self) -> bytes:
        return b''.join(map(digest_names, self.sources)) + repr(self.shares).encode()

    def name(self, index: int) -> str:
        part, place = self._part(index)
        source, whole = self.sources[part], int(self.shares[part])
        # Whole rounds have fixed samples; the samples of a fractional share differ per epoch, so they have no name of their
        # own.
        if place < whole * len(source):
            return source.name(place % len(source))
        return f"sample {place - whole * len(source)} of the epoch's share of {source.name(0)} and those after it"

    def read(self, draw: Draw) -> tuple[Image, Any]:
        source, own = self._chosen(draw)
        image, truth = source.read(own)
        return image, truth

    def files(self, draw: Draw) -> list[str]:
        return files_of(*self._chosen(draw))

    def _chosen(self, draw: Draw) -> tuple[Source[Any], Draw]:
        """Source of the sample of `draw`, and the draw of that source."""
        part, place = self._part(draw.index)
        source, (rounds, index) = self.sources[part], divmod(place, len(self.sources[part]))
        if rounds == int(self.shares[part]):  # the fractional share
            index = _sampled_index(index, len(source), part, draw)
        return source, draw.of(index)

    @property
    def notes(self) -> Mapping[str, int]:
        """Oddities of the annotations of all sources, with their counts, from sources that report them."""
        counts: Counter[str] = Counter()
        for source in self.sources:
            counts.update(getattr(source, 'notes', {}))
        return counts

    def each(self, change: Callable[[Any], Source[Any]]) -> Shares:
        """Apply `change` to each source and keep the shares."""
        return Shares([map_sources(source, change) for source in self.sources], self.shares)

    def _part(self, index: int) -> tuple[int, int]:
        """Number of the source, and place within its share."""
        part = bisect_right(self._starts, index) - 1
        return part, index - self._starts[part]


def map_sources(source: Any, change: Callable[[Any], Source[Any]]) -> Source[Any]:
    """Apply `change` to `source`; to each part of a mixture."""
    return source.each(change) if isinstance(source, Shares) else change(source)


def _sampled_index(place: int, size: int, part: int, draw: Draw) -> int:
    """Index of the `place`-th sample of a fractional share of a source of `size` in this epoch; all places differ.

    A random affine permutation (first + place * step mod size), which needs no memory.
    """
    rng = np.random.default_rng((draw.seed, 3, draw.epoch, part))
    # A function of (seed, epoch) alone, so that workers and ranks agree without communication.
    first, step = int(rng.integers(size)), int(rng.integers(size))
    while math.gcd(step, size) != 1:  # a permutation needs a step that is coprime to the size
        step += 1
    return (first + place * step) % size
