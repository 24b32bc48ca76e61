"""Where a run stands: how far it is, and which of its evaluations was the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass
class Standing:
    """What a checkpoint says of the run besides the tensors."""

    step: int = 0
    best: float | None = None  # the value of the metric that picks the best checkpoint
    best_step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last evaluation
    evaluated: int = 0  # the step of that
    no_better: int = 0  # how many evaluations came since the best

    def judged(self, metrics: Mapping[str, float], by: str) -> bool:
        """Takes note of an evaluation at the current step; whether it is the best so far. What is no number is not."""
        self.metrics, self.evaluated = metrics, self.step
        is_best = not math.isnan(metrics[by]) and (self.best is None or metrics[by] > self.best)
        self.no_better = 0 if is_best else self.no_better + 1
        if is_best:
            self.best, self.best_step = metrics[by], self.step
        return is_best

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, state: dict[str, Any], step: int) -> Self:
        """That of a checkpoint. Before 2026-11-21 they did not say what was evaluated; no evaluation was cut short then."""
        metrics = state['metrics']
        evaluated = state.get('evaluated', step if metrics else 0)
        return cls(step, state['best'], state['best_step'], metrics, evaluated, state.get('no_better', 0))
