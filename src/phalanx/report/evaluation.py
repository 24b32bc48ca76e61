"""The result of evaluating a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.families.figures import Figure, Grade


@dataclass(frozen=True)
class Worst:
    """A sample that was predicted badly."""

    index: int  # its number in the data set
    name: str
    grade: Grade

    @property
    def caption(self) -> str:
        return f'{self.name}: {self.grade.reason}'


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What came of evaluating a model. The main rank alone has table and figures; the rest is the same on all ranks."""

    metrics: Mapping[str, float]
    samples: int
    seconds: float
    table: Sequence[Mapping[str, str | float]] = ()
    figures: Sequence[Figure] = ()
    worst: Sequence[Worst] = ()  # the worst first
    missed: Mapping[int, str] = field(default_factory=dict)  # samples that could not be read, and why
    slow: Sequence[str] = ()  # ranks slower than the median: here, unlike in training, each works for itself
