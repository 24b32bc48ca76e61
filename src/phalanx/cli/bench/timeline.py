"""Where time goes: a line of moments, each of which ends one phase and begins the next."""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch


class Moment:
    """A point in time: of the host on a CPU, of the device's own work on CUDA, so that nothing has to wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        self._host = 0.0
        if device.type == 'cuda':
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = time.perf_counter()

    def until(self, later: Moment) -> float:
        """Seconds from here to `later`; on CUDA only after the device has come past both."""
        if self._event is None or later._event is None:
            return later._host - self._host
        return float(self._event.elapsed_time(later._event)) / 1000


class Mark(NamedTuple):
    phase: str  # what begins here
    moment: Moment


class Event(NamedTuple):
    """Something that happened within a step: a gradient that was ready, say, or an exchange with the other ranks."""

    kind: str
    moment: Moment
    size: int  # bytes


class Timeline:
    """What one process does, one phase at a time: every moment belongs to one phase, so that they add up to the whole."""

    def __init__(self, device: torch.device, idle: str = 'other') -> None:
        self.device, self.idle = device, idle
        self.clear()

    def clear(self) -> None:
        """Forgets everything and begins a first step, in the idle phase."""
        self.steps: list[list[Mark]] = [[Mark(self.idle, Moment(self.device))]]
        self.events: list[list[Event]] = [[]]

    @property
    def phase(self) -> str:
        """What goes on now."""
        return self.steps[-1][-1].phase

    def switch(self, phase: str, at: Moment | None = None) -> None:
        """Ends the phase that goes on and begins another one, now or at a moment that was held."""
        self.steps[-1].append(Mark(phase, at or Moment(self.device)))

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """What is done inside belongs to `phase`; then the phase before it goes on."""
        before = self.phase
        self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)

    def note(self, kind: str, size: int) -> None:
        self.events[-1].append(Event(kind, Moment(self.device), size))

    def end_step(self) -> None:
        """Ends a step; the next one begins at the same moment."""
        self.switch(self.idle)
        self.steps.append([self.steps[-1][-1]])
        self.events.append([])

    def seconds(self) -> list[dict[str, float]]:
        """Seconds of each phase, one dict a finished step. On CUDA it waits for the device."""
        if self.device.type == 'cuda':
            torch.cuda.synchronize(self.device)
        return [phase_seconds(marks) for marks in self.steps[:-1]]


def phase_seconds(marks: Sequence[Mark]) -> dict[str, float]:
    """Seconds from each mark to the next, added up by phase."""
    found: dict[str, float] = defaultdict(float)
    for here, following in pairwise(marks):
        found[here.phase] += here.moment.until(following.moment)
    return dict(found)


def mean_seconds(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each phase over the steps; they add up to the mean step, which medians would not."""
    phases = dict.fromkeys(phase for step in steps for phase in step)
    return {phase: math.fsum(step.get(phase, 0.0) for step in steps) / len(steps) for phase in phases}
