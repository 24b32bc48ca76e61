"""What a plan must know of a training step: measured on one rank, and kept in a file."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from phalanx.cli.bench.timeline import Event, Mark, mean_seconds

FIRST_BUCKET = 2**20  # bytes of gradients that DDP sends as soon as they are ready: 1 MiB first,
BUCKET = 25 * 2**20  # then 25 MiB at a time


class Message(NamedTuple):
    """Something for the network."""

    at: float  # seconds since the pass began in which it is sent, forward or backward
    size: int  # bytes


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One training step of one rank, alone: seconds, and what it would tell other ranks.

    Raises ValueError for what cannot be.
    """

    recipe: str
    device: str
    samples: int  # of a step on this rank
    run_samples: int  # of the whole run
    phases: dict[str, float]  # seconds
    norm_sync: str
    forward: tuple[Message, ...]  # exchanges that the forward pass waits for: one a synchronised norm
    losses: tuple[Message, ...]  # exchanges of losses, and of the step's numbers: over all ranks, whatever norm_sync says
    backward: tuple[Message, ...]  # exchanges that the backward pass waits for
    gradients: tuple[Message, ...]  # of each parameter, in the order in which they become ready
    loader_rate: float  # samples a second of one worker
    workers: int
    bucket_mb: float | None = None  # MiB of gradients that travel at once; None: as DDP itself has it

    def __post_init__(self) -> None:
        if self.samples < 1 or not self.phases or not self.gradients:
            raise ValueError('a profile needs samples, phases and gradients')

    @property
    def computing(self) -> float:
        """Seconds of a step without waiting for data."""
        return math.fsum(seconds for phase, seconds in self.phases.items() if phase != 'data wait')

    def buckets(self) -> list[Message]:
        """The gradients as DDP sends them: each bucket when the last one in it is ready."""
        first, later = (FIRST_BUCKET, BUCKET) if self.bucket_mb is None else 2 * (self.bucket_mb * 2**20,)
        found, held, limit = [], 0, first
        for at, size in self.gradients:
            held += size
            if held >= limit:
                found.append(Message(at, held))
                held, limit = 0, later
        if held:
            found.append(Message(self.gradients[-1].at, held))
        return found

    def write(self, file: Path) -> None:
        """Raises OSError."""
        file.write_text(json.dumps(asdict(self), indent=1) + '\n', encoding='utf-8')

    @classmethod
    def read(cls, file: Path) -> Self:
        """Raises ValueError when the file is none of ours, OSError when it cannot be read."""
        try:
            held: dict[str, Any] = json.loads(file.read_text(encoding='utf-8'))
            for name in ('forward', 'losses', 'backward', 'gradients'):
                held[name] = tuple(Message(*message) for message in held[name])
            return cls(**held)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f'{file} is no profile ({error}); `phalanx bench train --profile FILE` writes one') from None


def phases_and_messages(
    steps: Sequence[Sequence[Mark]], events: Sequence[Sequence[Event]], seconds: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """The fields of a Profile that a timeline knows: mean phases, and the messages at their mean moments."""
    found: dict[str, list[list[Message]]] = {name: [] for name in ('forward', 'losses', 'backward', 'gradients')}
    for marks, happened in zip(steps, events, strict=True):
        starts = {phase: next(mark.moment for mark in marks if mark.phase == phase) for phase in ('forward', 'backward')}
        for name, phase, kinds in (
            ('forward', 'forward', ('forward exchange',)),
            ('losses', 'forward', ('loss exchange', 'other exchange')),
            ('backward', 'backward', ('backward exchange',)),
            ('gradients', 'backward', ('gradient',)),
        ):
            here = [Message(starts[phase].until(event.moment), event.size) for event in happened if event.kind in kinds]
            found[name].append(here)
    return {'phases': mean_seconds(seconds), **{name: _mean(of_steps) for name, of_steps in found.items()}}


def _mean(steps: Sequence[Sequence[Message]]) -> tuple[Message, ...]:
    """Each message at the mean of its moments; steps have the same messages in the same order."""
    return tuple(
        Message(statistics.fmean(message.at for message in messages), messages[0].size) for messages in zip(*steps, strict=True)
    )
