"""Result of an evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.families.figures import Figure, Grade


@dataclass(frozen=True)
class Worst:
    """Sample with one of the worst predictions."""

    index: int  # in the data set
    name: str
    grade: Grade

    @property
    def caption(self) -> str:
        return f'{self.name}: {self.grade.reason}'


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Result of an evaluation. Only the main rank has table and figures; the rest is equal on all ranks."""

    metrics: Mapping[str, float]
    samples: int
    seconds: float
    table: Sequence[Mapping[str, str | float]] = ()
    figures: Sequence[Figure] = ()
    worst: Sequence[Worst] = ()  # the worst first
    missed: Mapping[int, str] = field(default_factory=dict)  # unreadable samples and the reasons
    slow: Sequence[str] = ()  # warnings about slow ranks: unlike in training, ranks do not wait for each other here
