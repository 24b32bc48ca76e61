"""What one forward pass may ask about the whole step it is part of.

A step's global batch is cut over ranks and micro-batches. Whatever is a property of the global batch - the statistics of a
synchronised norm, the number of judged pixels, the threshold of hard-example mining - goes through `WholeStep.sum`, and so
does not depend on the cut.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from phalanx import dist

T = TypeVar('T')


class WholeStep:
    """The step that a forward pass belongs to: sums over all its micro-batches on all ranks.

    Micro-batches of one rank run side by side (`run`), one thread each but only one of them awake at a time, in a fixed order.
    They meet in `sum`: the last to arrive adds up and asks the other ranks. Because the meeting is an ordinary sum of ordinary
    tensors, one backward pass differentiates through all micro-batches at once, exactly as if they had been one batch.
    """

    def __init__(self) -> None:
        self._lane = threading.local()  # which micro-batch the current thread runs; unset outside `run`
        self._meeting: _Meeting | None = None

    def is_cut(self, group: dist.Group | None = None) -> bool:
        """Whether this forward pass sees only a part of what the ranks of `group` (None: all) hold of the step."""
        return self._meeting is not None or dist.group_size(group) > 1

    def sum(self, part: Tensor, group: dist.Group | None = None) -> Tensor:
        """`part` added up over all micro-batches of the ranks of `group` (None: all); differentiable.

        Every forward pass of the step must come here equally often, with parts of one shape.
        """
        if self._meeting is None:
            return dist.sum_over_ranks(part, group)
        return self._meeting.meet(self._lane.number, part, lambda whole: dist.sum_over_ranks(whole, group))

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """The results of `calls`, one forward pass each, run side by side so that they can meet in `sum`."""
        if len(calls) == 1:
            return [calls[0]()]
        meeting = self._meeting = _Meeting(len(calls))
        results: list[T | None] = [None] * len(calls)
        grad, autocast = torch.is_grad_enabled(), _autocast_here()

        def lane(number: int) -> None:
            self._lane.number = number
            with meeting.lane(number), torch.set_grad_enabled(grad), autocast():
                results[number] = calls[number]()

        threads = [threading.Thread(target=lane, args=(number,), name=f'micro-batch {number}') for number in range(len(calls))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self._meeting = None
        if meeting.error is not None:
            raise meeting.error
        return results  # type: ignore[return-value]  # no error means every lane left its result


class _Abandoned(BaseException):
    """Raised in the lanes that wait for one that failed."""


class _Meeting:
    """Lanes that take turns: one runs until it meets the others or ends, then the next one in order."""

    def __init__(self, lanes: int) -> None:
        self._turn = threading.Condition()
        self._awake = 0
        self._alive = list(range(lanes))
        self._parts: dict[int, Tensor] = {}
        self._whole: Tensor | None = None
        self.error: BaseException | None = None

    def lane(self, number: int) -> _Lane:
        return _Lane(self, number)

    def meet(self, number: int, part: Tensor, finish: Callable[[Tensor], Tensor]) -> Tensor:
        self._parts[number] = part
        if len(self._parts) == len(self._alive):  # the last to arrive adds up, in the order of the lanes
            self._whole = finish(torch.stack([self._parts[lane] for lane in sorted(self._parts)]).sum(0))
            self._parts = {}
        self._pass_on(number)
        self._wait(number)
        assert self._whole is not None
        return self._whole

    def _pass_on(self, number: int) -> None:
        with self._turn:
            later = [lane for lane in self._alive if lane > number]
            self._awake = later[0] if later else (self._alive[0] if self._alive else -1)
            self._turn.notify_all()

    def _wait(self, number: int) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._awake == number or self.error is not None)
        if self.error is not None:
            raise _Abandoned

    def _leave(self, number: int, error: BaseException | None) -> None:
        if error is not None and self.error is None and not isinstance(error, _Abandoned):
            self.error = error
        self._pass_on(number)
        with self._turn:
            self._alive.remove(number)
            self._turn.notify_all()


class _Lane:
    """The time between a lane's first turn and its end."""

    def __init__(self, meeting: _Meeting, number: int) -> None:
        self._meeting, self._number = meeting, number

    def __enter__(self) -> None:
        try:
            self._meeting._wait(self._number)
        except _Abandoned:
            self._meeting._leave(self._number, None)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._meeting._leave(self._number, error)
        return error is not None  # it is raised again, once, by `run`


def _autocast_here() -> Callable[[], torch.autocast]:
    """Autocast as the calling thread has it: the setting is per thread, so lanes must take it over."""
    kind = 'cuda' if torch.is_autocast_enabled('cuda') else 'cpu'
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)
