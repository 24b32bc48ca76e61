"""Results of a metric beside its numbers: figures, which the report draws, and the grades of single samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.data.samples import Image


@dataclass(frozen=True)
class Curves:
    """Values over one another, a line each, for the report."""

    title: str
    x: str  # what the axes are
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]  # name -> points (x, y), by x


@dataclass(frozen=True)
class Matrix:
    """How often each of K things was taken for which."""

    title: str
    names: Sequence[str]
    counts: Sequence[Sequence[int]]  # [K truth, K prediction]


@dataclass(frozen=True)
class Pictures:
    """Images that a person should look at, a row a sample."""

    title: str
    rows: Sequence[tuple[str, Sequence[tuple[str, Image]]]]  # what is to be said of the sample, and its captioned pictures


@dataclass(frozen=True)
class Legend:
    """What the colours in the pictures of samples stand for."""

    colours: Mapping[str, str]  # name -> `#rrggbb`


class Grade(NamedTuple):
    """Quality of the prediction for one sample that is not all right."""

    value: float  # lower is worse
    reason: str  # description of the fault


Figure = Curves | Matrix | Pictures | Legend
