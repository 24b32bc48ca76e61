"""Figures for the report, and grades of single samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.data.samples import Image


@dataclass(frozen=True)
class Curves:
    """Line chart."""

    title: str
    x: str  # axis labels
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]  # name -> points (x, y), by x


@dataclass(frozen=True)
class Matrix:
    """Confusion matrix of K classes."""

    title: str
    names: Sequence[str]
    counts: Sequence[Sequence[int]]  # [K truth, K prediction]


@dataclass(frozen=True)
class Table:
    """Table with the same columns in each row."""

    title: str
    rows: Sequence[Mapping[str, str | float]]


@dataclass(frozen=True)
class Pictures:
    """Pictures of samples, one row per sample."""

    title: str
    rows: Sequence[tuple[str, Sequence[tuple[str, Image]]]]  # description of the sample, and its captioned pictures


@dataclass(frozen=True)
class Legend:
    """Meaning of the colours in pictures of samples."""

    colours: Mapping[str, str]  # name -> `#rrggbb`


class Grade(NamedTuple):
    """Quality of an imperfect prediction for one sample."""

    value: float  # lower is worse
    reason: str  # description of the fault


Figure = Curves | Matrix | Table | Pictures | Legend
