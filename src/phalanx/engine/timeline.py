"""Steps and samples of a run whose global batch may change from one start to the next.

A step is one optimizer update, and its number never changes. Lengths that a recipe gives in steps count updates; lengths in
epochs count samples. Both are equivalent while the global batch stays the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self


@dataclass(frozen=True)
class Timeline:
    """Number of samples seen at every step of a run."""

    batches: tuple[tuple[int, int], ...]  # (first step, global batch size from there on), in the order of steps
    in_epochs: bool = False  # the recipe gives the length of the run in epochs

    @classmethod
    def resume(cls, batches: Sequence[tuple[int, int]], step: int, batch: int, in_epochs: bool) -> Self:
        """Return the timeline of a run that continues at `step` with a global batch of `batch`, after `batches`.

        If those are unknown, assumes `batch` for them.
        """
        # A range that begins at `step` is empty: the start that added it made no step.
        before = [(first, size) for first, size in batches if first < step] or [(0, batch)]
        return cls((*before, *([(step, batch)] if before[-1][1] != batch else ())), in_epochs)

    @property
    def global_batch_size(self) -> int:
        """Global batch size of the current start."""
        return self.batches[-1][1]

    @property
    def ema_share(self) -> float:
        """Number of updates with the run's first global batch that one update now stands for, if the length counts samples."""
        return self.global_batch_size / self.batches[0][1] if self.in_epochs else 1.0

    @property
    def offset(self) -> int:
        """Samples seen so far, minus those of the same number of steps with the current global batch."""
        first, batch = self.batches[-1]
        return int(self.samples(first)) - first * batch

    def samples(self, step: float) -> float:
        """Number of samples seen before `step`, an int for a whole step."""
        samples = 0
        for (first, batch), (end, _) in pairwise(self.batches):
            if step < end:
                return samples + (step - first) * batch
            samples += (end - first) * batch
        first, batch = self.batches[-1]
        return samples + (step - first) * batch

    def equivalent_steps(self, step: float) -> float:
        """Samples seen before `step`, in steps of the current global batch."""
        return self.samples(step) / self.global_batch_size

    def step_of(self, equivalent_steps: float) -> float:
        """Inverse of `equivalent_steps`."""
        remaining = equivalent_steps * self.global_batch_size
        for (first, batch), (end, _) in pairwise(self.batches):
            if remaining < (end - first) * batch:
                return first + remaining / batch
            remaining -= (end - first) * batch
        first, batch = self.batches[-1]
        return first + remaining / batch

    def last_step(self, epochs: float, size: int) -> int:
        """Step that completes `epochs` passes over `size` samples, rounded up."""
        first, batch = self.batches[-1]
        # Count from the last change of the batch: steps before it are done, whatever their size.
        return first + max(0, in_steps(epochs - self.samples(first) / size, size / batch))


@dataclass(frozen=True)
class Length:
    """Number of steps: updates, or, with a timeline, steps of the current global batch, which count samples."""

    steps: int
    timeline: Timeline | None = None

    def elapsed(self, step: float) -> float:
        """Steps of this kind made before update number `step`."""
        return step if self.timeline is None else self.timeline.equivalent_steps(step)

    @property
    def end(self) -> float:
        """Update at which a length that starts with the run ends."""
        return self.steps if self.timeline is None else self.timeline.step_of(self.steps)

    def is_completed_at(self, step: int) -> bool:
        """True if the update before `step` completed a multiple of this length; never for length 0."""
        # The number of completed lengths grew with this step; with a timeline, `elapsed` may be fractional.
        return self.steps > 0 and self.elapsed(step) // self.steps > self.elapsed(step - 1) // self.steps


def in_steps(epochs: float, steps_per_epoch: float) -> int:
    """Return the number of steps in `epochs` passes over the data set, rounded up."""
    return math.ceil(epochs * steps_per_epoch - 1e-9)  # 0.1 x 30 is a little more than 3
