"""Steps and samples of a run, whose global batch may change from one start to the next.

A step is one update of the weights, and its number never changes. Whatever a recipe gives in steps counts updates; whatever it
gives in epochs counts samples. Both are the same as long as the global batch is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self


@dataclass(frozen=True)
class Timeline:
    """The samples seen at every step of a run."""

    batches: tuple[tuple[int, int], ...]  # (first step, global batch size from there on), in the order of steps
    in_epochs: bool = False  # whether the recipe gives the length of the run in epochs

    @classmethod
    def resumed(cls, batches: Sequence[tuple[int, int]], step: int, batch: int, in_epochs: bool) -> Self:
        """The timeline of a run that continues at `step` with a global batch of `batch`, and had `batches` before.

        Where those are unknown, `batch` is taken for them.
        """
        before = [(first, size) for first, size in batches if first < step] or [(0, batch)]
        return cls((*before, *([(step, batch)] if before[-1][1] != batch else ())), in_epochs)

    @property
    def global_batch_size(self) -> int:
        """That of the present start."""
        return self.batches[-1][1]

    @property
    def ema_share(self) -> float:
        """Updates of the run's first global batch that an update now stands for, where the length counts samples."""
        return self.global_batch_size / self.batches[0][1] if self.in_epochs else 1.0

    @property
    def offset(self) -> int:
        """The samples seen in all, less those that as many steps of the present global batch would have been."""
        first, batch = self.batches[-1]
        return int(self.samples(first)) - first * batch

    def samples(self, step: float) -> float:
        """The number of samples seen before `step`, an int for a whole step."""
        seen = 0
        for (first, batch), (end, _) in pairwise(self.batches):
            if step < end:
                return seen + (step - first) * batch
            seen += (end - first) * batch
        first, batch = self.batches[-1]
        return seen + (step - first) * batch

    def even_steps(self, step: float) -> float:
        """The samples seen before `step`, as a number of steps of the present global batch."""
        return self.samples(step) / self.global_batch_size

    def step_of(self, even_steps: float) -> float:
        """The inverse of `even_steps`."""
        left = even_steps * self.global_batch_size
        for (first, batch), (end, _) in pairwise(self.batches):
            if left < (end - first) * batch:
                return first + left / batch
            left -= (end - first) * batch
        first, batch = self.batches[-1]
        return first + left / batch

    def last_step(self, epochs: float, size: int) -> int:
        """The step after which `epochs` passes over `size` samples are made; a step that was begun counts."""
        first, batch = self.batches[-1]
        return first + max(0, in_steps(epochs - self.samples(first) / size, size / batch))


@dataclass(frozen=True)
class Length:
    """A number of steps: of updates, or with a timeline of steps of the present global batch, which count samples."""

    steps: int
    timeline: Timeline | None = None

    def done(self, step: float) -> float:
        """The steps of this kind made before the update number `step`."""
        return step if self.timeline is None else self.timeline.even_steps(step)

    @property
    def end(self) -> float:
        """The update with which it is over, when it begins with the run."""
        return self.steps if self.timeline is None else self.timeline.step_of(self.steps)

    def is_completed_at(self, step: int) -> bool:
        """Whether the update before `step` completed a multiple of this length. No multiple of 0 ever is."""
        return self.steps > 0 and self.done(step) // self.steps > self.done(step - 1) // self.steps


def in_steps(epochs: float, steps_per_epoch: float) -> int:
    """The number of steps that make `epochs` passes over the data set; a step that was begun counts."""
    return math.ceil(epochs * steps_per_epoch - 1e-9)  # 0.1 x 30 is a little more than 3
