"""Training progress: step, times, and best evaluation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

DIVERGENCE = 100  # multiple of the first loss from which a step counts as diverged
DIVERGED_STEPS = 10  # in a row: a single bad batch can recover


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
    first_loss: float | None = None  # of step 0
    high_losses: int = 0  # steps in a row, up to now, with a loss of at least DIVERGENCE times the first

    def record_evaluation(self, metrics: Mapping[str, float], by: Sequence[str]) -> bool:
        """Record an evaluation at the current step; True if it is the best so far.

        The metrics `by` are compared in order, and the later of two equal evaluations wins: early ones are often all 0. An
        evaluation whose first metric is NaN is never the best. While the initial weights are the best, an evaluation better
        than the one before counts as progress for early stopping: fine-tuning often loses first and gains later.
        """
        previous = self._score(self.metrics, by) if self.metrics else None
        self.metrics, self.evaluated = metrics, self.step
        score = self._score(metrics, by)
        before = None if self.best is None else (self.best, self.best_ties)
        is_best = not math.isnan(score[0]) and (before is None or score >= before)
        gained = previous is not None and before is not None and self.best_step == 0 and score > previous
        self.no_better = 0 if gained or (is_best and score != before) else self.no_better + 1
        if is_best:
            (self.best, self.best_ties), self.best_step = score, self.step
        return is_best

    @staticmethod
    def _score(metrics: Mapping[str, float], by: Sequence[str]) -> tuple[float, list[float]]:
        """Return the main metric and the tie-breaking ones, which are minus infinity where they are NaN."""
        first, *ties = (metrics[name] for name in by)
        return first, [-math.inf if math.isnan(value) else value for value in ties]

    def has_diverged(self, loss: float) -> bool:
        """Record the loss of the next step; True if the loss is higher than the first by orders of magnitude and stays so."""
        if self.first_loss is None:
            self.first_loss = loss
        # Below 1, a ratio means little: a fine-tuned network may start with a loss near 0.
        is_high = loss >= DIVERGENCE * max(self.first_loss, 1.0)
        self.high_losses = self.high_losses + 1 if is_high else 0
        return self.high_losses >= DIVERGED_STEPS

    @classmethod
    def of(cls, state: Mapping[str, Any], step: int) -> Self:
        """Return the progress in the state of a checkpoint; fields that are missing there get their defaults."""
        return cls(**{each.name: state[each.name] for each in fields(cls) if each.name in state} | {'step': step})
