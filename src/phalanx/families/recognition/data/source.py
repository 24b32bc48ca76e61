"""What a data set of texts gives: a Data makes the splits, a Source reads the samples of one split."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np

from phalanx.data.samples import Draw, Image, Split

Rng = np.random.Generator
TextImage = tuple[Image, str]  # [H, W, 3] RGB, and what is written in it


class Chance:
    """The random numbers of one sample, made when they are first asked for: that takes half as long as to decode a word."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._rng: Rng | None = None

    def rng(self) -> Rng:
        if self._rng is None:
            self._rng = self._draw.rng()
        return self._rng


class Source(Protocol):
    """The samples of one split."""

    def __len__(self) -> int: ...
    def check_files(self) -> None:
        """Raises FileNotFoundError, naming the first, when files of samples are missing; reads none of them."""

    def name(self, index: int) -> str:
        """What a person calls the sample: the path of its image, mostly."""

    def read(self, draw: Draw, chance: Chance) -> TextImage:
        """An image and its text; `chance` is the sample's own, for sources that draw their images. Raises SampleError."""


class Data(Protocol):
    """A data set, as a recipe describes it."""

    def split(self, split: Split) -> Source:
        """Raises FileNotFoundError or ValueError, naming paths and lines, when files are missing or lists malformed."""


class Shares:
    """Several sources as one: of each `share` times its length in an epoch, 0.1 a tenth, 3 everything thrice.

    Which samples make up a broken share is a function of (seed, epoch): over the epochs all of them get their turn.
    """

    def __init__(self, sources: Sequence[Source], shares: Sequence[float]) -> None:
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

    def read(self, draw: Draw, chance: Chance) -> TextImage:
        part, place = self._part(draw.index)
        source, (rounds, index) = self.sources[part], divmod(place, len(self.sources[part]))
        if rounds == int(self.shares[part]):  # the broken share
            index = _drawn(index, len(source), part, draw)
        return source.read(draw.of(index), chance)

    def _part(self, index: int) -> tuple[int, int]:
        """Which source, and which of its places."""
        part = bisect_right(self._starts, index) - 1
        return part, index - self._starts[part]


def _drawn(place: int, size: int, part: int, draw: Draw) -> int:
    """The `place`-th of the samples that stand for a source of `size` in this epoch; no two places have the same one.

    Steps of one random width round the circle of samples: a permutation that needs no memory, however many there are.
    """
    rng = np.random.default_rng((draw.seed, 3, draw.epoch, part))
    first, step = int(rng.integers(size)), int(rng.integers(size))
    while math.gcd(step, size) != 1:  # else it would come round too early
        step += 1
    return (first + place * step) % size
