"""Training progress: step, times, and best evaluation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self


@dataclass
class Progress:
    """State of the run in a checkpoint, besides the tensors."""

    step: int = 0
    batches: Sequence[tuple[int, int]] = ()  # (first step, global batch size from there on): `timeline.Timeline`
    ranks: int = 0  # world size of the start that made the last step
    seconds: float = 0.0  # over all starts, as the following fields; without steps lost in a crash
    training_seconds: float = 0.0  # without evaluations and checkpoints, on the main rank
    waiting_seconds: float = 0.0  # waits for data, on the main rank
    timed_samples: int = 0  # samples trained in `training_seconds`
    peak_memory_mb: float = 0.0
    best: float | None = None  # main metric of the best evaluation
    best_step: int = 0
    best_ties: list[float] = field(default_factory=list)  # tie-breaking metrics at that step, in order
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last evaluation
    evaluated: int = 0  # step of the last evaluation
    no_better: int = 0  # evaluations since the best one
    start: float | None = None  # main metric of the initial weights

    def record_evaluation(self, metrics: Mapping[str, float], by: Sequence[str]) -> bool:
        """Record an evaluation at the current step; True if it is the best so far.

        The metrics `by` are compared in order, and the later of two equal evaluations wins: early ones are often all 0. An
        evaluation whose first metric is NaN is never the best.
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
        """Return the progress in the state of a checkpoint; fields that are missing there get their defaults."""
        return cls(**{each.name: state[each.name] for each in fields(cls) if each.name in state} | {'step': step})
