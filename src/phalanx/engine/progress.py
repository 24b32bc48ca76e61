"""The progress of a run: how far it is, how long that took, and which of its evaluations was the best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self


@dataclass
class Progress:
    """All that a checkpoint says of the run besides the tensors."""

    step: int = 0
    batches: Sequence[tuple[int, int]] = ()  # (first step, global batch size from there on): `timeline.Timeline`
    ranks: int = 0  # of the start that made the last step
    seconds: float = 0.0  # over all starts, like the following; steps that were lost with a start do not count
    training_seconds: float = 0.0  # without evaluations and checkpoints, on the main rank
    waiting_seconds: float = 0.0  # for data, on the main rank
    timed_samples: int = 0  # seen in `training_seconds`
    peak_memory_mb: float = 0.0
    best: float | None = None  # the value of the metric that picks the best checkpoint
    best_step: int = 0
    best_ties: list[float] = field(default_factory=list)  # what broke ties at that step, in order
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last evaluation
    evaluated: int = 0  # the step of that
    no_better: int = 0  # how many evaluations came since the best
    start: float | None = None  # the metric that picks the best checkpoint, of the weights that the run began with

    def evaluated_as(self, metrics: Mapping[str, float], by: Sequence[str]) -> bool:
        """Records an evaluation at the current step; whether it is the best so far.

        The metrics `by` are compared in their order, and the later of two equal evaluations wins: early ones are often all 0. A
        first metric that is not a number is never the best.
        """
        self.metrics, self.evaluated = metrics, self.step
        first, *ties = (metrics[name] for name in by)
        ties = [-math.inf if math.isnan(value) else value for value in ties]
        before = None if self.best is None else (self.best, self.best_ties)
        is_best = not math.isnan(first) and (before is None or (first, ties) >= before)
        self.no_better = 0 if is_best and (first, ties) != before else self.no_better + 1
        if is_best:
            self.best, self.best_ties, self.best_step = first, ties, self.step
        return is_best

    @classmethod
    def of(cls, state: Mapping[str, Any], step: int) -> Self:
        """The progress that the state of a checkpoint holds; fields that it does not know yet have their defaults."""
        return cls(**{each.name: state[each.name] for each in fields(cls) if each.name in state} | {'step': step})
