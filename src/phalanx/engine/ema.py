"""Exponential moving average (EMA) of the weights, evaluated and exported in place of the last weights.

Kinds `threshold`, `normal` and `exponential` follow PaddleDetection, `ramp` follows PaddleSeg.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn

TRIAL = 100  # updates: a shorter run is a trial that need not give a good model
WINDOWS = 7  # averaging windows until an average is used; e^-7 of its start is left (after 5, a CRNN lost 10 points to it)


@dataclass(frozen=True, kw_only=True)
class EmaOptions:
    decay: float = 0.9998
    """Final decay: share of the average kept per update."""
    kind: Literal['threshold', 'normal', 'exponential', 'ramp'] = 'threshold'
    """Decay at update t, counted from 0. `threshold`: min(decay, (1 + t) / (10 + t)); `normal`: decay; `exponential`: decay *
    (1 - exp(-(t + 1) / warmup)); `ramp`: min(decay, 1 - 1 / (t + 2))."""
    warmup: int = 2000
    """`exponential`: updates until the decay has reached 63 % of its final value; 0: it has it from the start."""
    skip: tuple[str, ...] = ()
    """Name patterns of entries that are copied instead of averaged, for example `*.proj_conv.weight`."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f'decay must be at least 0 and below 1, got {self.decay}')
        if self.warmup < 0:
            raise ValueError(f'warmup cannot be negative, got {self.warmup}')


class Ema:
    """Average over training of every floating-point entry of a model's state, running statistics included."""

    @torch.no_grad()
    def __init__(self, model: nn.Module, options: EmaOptions) -> None:
        self._options = options
        self._own: dict[str, Tensor] = dict(model.state_dict())  # the tensors of the model themselves, looked up once
        # `ramp` and `exponential` average from the initial weights on, as PaddleSeg and D-FINE do; the others from zero, as
        # PaddleDetection does (see `weights`). With a warm-up of thousands of updates, nothing of the start remains.
        start = torch.clone if options.kind in ('ramp', 'exponential') else torch.zeros_like
        self._averages = {
            name: start(value)
            for name, value in self._own.items()
            if value.is_floating_point() and not any(fnmatchcase(name, pattern) for pattern in options.skip)
        }
        self._averaged = [self._own[name] for name in self._averages]
        self._updates = 0.0  # in updates of the first global batch: a later one may be larger or smaller

    def decay(self, update: float) -> float:
        """Share of the average that update number `update` (from 0) keeps."""
        highest = self._options.decay
        match self._options.kind:
            case 'threshold':
                return min(highest, (1 + update) / (10 + update))
            case 'normal':
                return highest
            case 'exponential':
                warmup = self._options.warmup
                return highest * (1 - math.exp(-(update + 1) / warmup)) if warmup else highest
            case 'ramp':
                return min(highest, 1 - 1 / (update + 2))

    @property
    def settling_updates(self) -> int:
        """First update with a usable average: with `ramp` and `normal`, earlier ones still hold the start of the run.

        The other kinds reach back no further than a ninth of the updates so far.
        """
        return round(WINDOWS / (1 - self._options.decay)) if self._options.kind in ('ramp', 'normal') else 1

    @property
    def is_settled(self) -> bool:
        """True if the average can replace the weights as trained."""
        return self._updates >= self.settling_updates

    def notes(self, steps: int) -> list[str]:
        """Warnings about this average in a run of `steps`. Short trial runs get none."""
        if not TRIAL < steps < self.settling_updates:
            return []
        return [
            f'{steps} steps are too few for the EMA, which needs {self.settling_updates:,} to forget the start of the run: the '
            f'weights as trained are evaluated and exported; ema.decay={1 - 2 * WINDOWS / steps:.2g} suits a run of this length'
        ]

    @torch.no_grad()
    def update(self, share: float = 1.0) -> None:
        """Move the average towards the model.

        `share`: updates of the run's first global batch that this one stands for, 2 where a step sees twice the samples.
        """
        # `decay ** share`: keeping `decay` of the average `share` times in a row, so that the EMA spans the same number of
        # samples after a change of the global batch.
        torch._foreach_lerp_(list(self._averages.values()), self._averaged, 1 - self.decay(self._updates) ** share)
        self._updates += share

    def averages(self, names: Iterable[str]) -> list[Tensor]:
        """Averages of the entries in `names`, without those that are not averaged; not copies."""
        return [self._averages[name] for name in names if name in self._averages]

    @torch.no_grad()
    def weights(self) -> dict[str, Tensor]:
        """State of the model with averages in place of the averaged entries; before the first update, the model's own.

        `threshold` and `normal` start from zero. As in PaddleDetection, the bias is corrected by a division by `1 - decay **
        updates` with the latest decay, which is exact only while the decay does not change.
        """
        if self._updates == 0:
            return dict(self._own)
        # Weight of the zeros that the average started from.
        missing = 0.0
        if self._options.kind in ('threshold', 'normal'):
            missing = self.decay(self._updates - 1) ** self._updates
        averages = torch._foreach_div(list(self._averages.values()), 1 - missing)
        return self._own | dict(zip(self._averages, averages, strict=True))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the model has the averaged weights. Restores its own on exit, also after an exception."""
        # Swap values in place: DDP and the optimizer hold the same tensors.
        own = [value.clone() for value in self._own.values()]
        torch._foreach_copy_(list(self._own.values()), list(self.weights().values()))  # of the same names, in the same order
        try:
            yield
        finally:
            torch._foreach_copy_(list(self._own.values()), own)

    def state(self) -> dict[str, Any]:
        """State for resuming; the tensors are not copies."""
        return {'updates': self._updates, 'averages': self._averages}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`. Raises ValueError, naming entries, if it belongs to another model."""
        averages: dict[str, Tensor] = state['averages']
        # Names that are in only one of the two.
        if differing := sorted(averages.keys() ^ self._averages.keys()):
            raise ValueError(f'the EMA was saved for another model: only one of them has {", ".join(differing[:5])}')
        for name, average in self._averages.items():
            average.copy_(averages[name])
        self._updates = state['updates']
