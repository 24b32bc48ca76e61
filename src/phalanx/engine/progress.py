"""Training progress: step, times, and best evaluation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

DIVERGENCE = 10  # multiple of the first loss, of one of at least 10, that healthy training reaches in single bad batches only
RECOVERY, CALM = 40, 10  # steps after such a one, within which the loss must be at most the first one CALM times in a row


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
    best_metrics: Mapping[str, float] = field(default_factory=dict)  # of that evaluation
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last evaluation
    evaluated: int = 0  # step of the last evaluation
    no_better: int = 0  # evaluations since the best one
    start_metrics: Mapping[str, float] = field(default_factory=dict)  # of the initial weights, if they were evaluated
    first_loss: float | None = None  # of step 0
    low_losses: int = 0  # steps in a row, up to now, with a loss of at most the first
    unrecovered: int = 0  # steps since the loss was DIVERGENCE times the first; 0 once it has come back

    def record_evaluation(self, metrics: Mapping[str, float], by: Sequence[str]) -> bool:
        """Record an evaluation at the current step; True if it is the best so far.

        The metrics `by` are compared in order, and the later of two equal evaluations wins: early ones are often all 0. An
        evaluation whose first metric is NaN is never the best. While the initial weights are the best, an evaluation better
        than the one before counts as progress for early stopping: fine-tuning often loses first and gains later.
        """
        previous = self._score(self.metrics, by) if self.metrics else None
        self.metrics, self.evaluated = metrics, self.step
        score = self._score(metrics, by)
        before = None if self.best is None else self._score({by[0]: self.best, **self.best_metrics}, by)
        is_best = not math.isnan(score[0]) and (before is None or score >= before)
        gained = previous is not None and before is not None and self.best_step == 0 and score > previous
        self.no_better = 0 if gained or (is_best and score != before) else self.no_better + 1
        if is_best:
            self.best, self.best_metrics, self.best_step = score[0], metrics, self.step
        return is_best

    @staticmethod
    def _score(metrics: Mapping[str, float], by: Sequence[str]) -> tuple[float, list[float]]:
        """Return the main metric and the tie-breaking ones, which are minus infinity where they are NaN."""
        first, *ties = (metrics.get(name, math.nan) for name in by)
        return first, [-math.inf if math.isnan(value) else value for value in ties]

    def has_diverged(self, loss: float) -> bool:
        """Record the loss of the next step; True if it rose by orders of magnitude and has not come back since.

        A rate that is too high need not keep the loss high: behind batch norms, weights that exploded give a loss around the
        first, which hardly falls any more, with further rises.
        """
        if self.first_loss is None:
            self.first_loss = loss
        # A fine-tuned network may start with a loss near 0, and a first batch without objects has a small one in any network.
        self.low_losses = self.low_losses + 1 if loss <= max(self.first_loss, 1.0) else 0
        if self.low_losses >= CALM:
            self.unrecovered = 0
        elif self.unrecovered or loss >= DIVERGENCE * max(self.first_loss, 10.0):
            self.unrecovered += 1
        return self.unrecovered >= RECOVERY

    @classmethod
    def of(cls, state: Mapping[str, Any], step: int) -> Self:
        """Return the progress in the state of a checkpoint; fields that are missing there get their defaults."""
        return cls(**{each.name: state[each.name] for each in fields(cls) if each.name in state} | {'step': step})
