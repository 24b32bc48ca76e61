"""What one forward pass may ask about the whole step it is part of.

A step's global batch is cut over ranks and micro-batches. Whatever is a property of the global batch - the statistics of a
synchronised norm, the number of judged pixels, the threshold of hard-example mining - goes through `WholeStep.sum`, and so
does not depend on the cut.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

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
        self.ranks: dist.Group | None = None  # that take the step together; None: all

    def is_cut(self, group: dist.Group | None = None) -> bool:
        """Whether this forward pass sees only a part of what the ranks of `group` (None: of the step) hold of the step."""
        return self._meeting is not None or dist.group_size(group or self.ranks) > 1

    @property
    def is_first(self) -> bool:
        """Whether this is the first micro-batch of its rank: what must happen once a step (running statistics) happens here."""
        return self._meeting is None or self._lane.number == 0

    def sum(self, part: Tensor, group: dist.Group | None = None) -> Tensor:
        """`part` added up over all micro-batches of the ranks of `group` (None: of the step); differentiable.

        Every forward pass of the step must come here equally often, with parts of one shape.
        """
        group = group or self.ranks
        if self._meeting is None:
            return dist.sum_over_ranks(part, group)
        return self._meeting.meet(self._lane.number, part, lambda whole: dist.sum_over_ranks(whole, group))

    def largest(self, numbers: Sequence[int], limit: int) -> list[int]:
        """The largest that each of `numbers`, from 0 to `limit`, is in any micro-batch on any rank of the step.

        For the shapes of tensors: counted on the host, so that no device is waited for.
        """
        seen = torch.zeros(len(numbers), limit + 1, dtype=torch.int64)
        seen[range(len(numbers)), numbers] = 1
        return [int(row.nonzero().max()) for row in self.sum(seen)]

    def ask(self) -> tuple[Tensor, int] | None:
        """The keys [B] of the samples of this micro-batch, and how often this pass asked before; None outside `run`.

        With both, each layer of a network can draw its own random numbers for each sample (see `stochastic`).
        """
        keys: Tensor | None = getattr(self._lane, 'keys', None)
        if keys is None:
            return None
        self._lane.asked += 1
        return keys, self._lane.asked - 1

    def run(
        self,
        calls: Sequence[Callable[[], T]],
        keys: Sequence[Tensor] | None = None,
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> list[T]:
        """The results of `calls`, one forward pass each, run side by side so that they can meet in `sum`.

        `keys` [B] of each: the random numbers of its samples, see `ask`. Several calls run `within` a context each: what torch
        keeps for every thread has to be said in the thread.
        """
        if len(calls) == 1:
            self._enter(0, keys)
            try:
                return [calls[0]()]
            finally:
                self._lane.keys = None
        meeting = self._meeting = _Meeting(len(calls))
        results: list[T | None] = [None] * len(calls)
        grad, autocast = torch.is_grad_enabled(), _autocast_here()

        def lane(number: int) -> None:
            self._enter(number, keys)
            try:
                meeting.wait(number)
                with torch.set_grad_enabled(grad), autocast(), within():
                    results[number] = calls[number]()
            except _AbandonedError:
                pass
            except BaseException as error:  # noqa: BLE001 - a thread cannot raise into its starter: `run` raises it again
                meeting.error = meeting.error or error
            finally:
                meeting.leave(number)

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

    def _enter(self, number: int, keys: Sequence[Tensor] | None) -> None:
        """Tells the current thread which micro-batch it runs."""
        self._lane.number, self._lane.keys, self._lane.asked = number, keys[number] if keys else None, 0


class _AbandonedError(Exception):
    """Raised in the lanes that wait for one that failed."""


class _Meeting:
    """Lanes that take turns: one runs until it meets the others or ends, then the next one in order."""

    def __init__(self, lanes: int) -> None:
        self._turn = threading.Condition()
        self._awake = 0
        self._alive = list(range(lanes))
        self._parts: dict[int, Tensor] = {}
        self._whole = torch.empty(0)
        self.error: BaseException | None = None

    def wait(self, number: int) -> None:
        """Returns when it is this lane's turn."""
        with self._turn:
            self._turn.wait_for(lambda: self._awake == number or self.error is not None)
        if self.error is not None:
            raise _AbandonedError

    def meet(self, number: int, part: Tensor, finish: Callable[[Tensor], Tensor]) -> Tensor:
        """The sum of what all lanes brought; the last lane to arrive finishes it before any of them goes on."""
        self._parts[number] = part
        if len(self._parts) == len(self._alive):
            self._whole = finish(torch.stack([self._parts[lane] for lane in sorted(self._parts)]).sum(0))
            self._parts = {}
        self._pass_on(number)
        self.wait(number)
        return self._whole

    def leave(self, number: int) -> None:
        self._pass_on(number)
        with self._turn:
            self._alive.remove(number)

    def _pass_on(self, number: int) -> None:
        with self._turn:
            self._awake = next((lane for lane in self._alive if lane > number), self._alive[0])
            self._turn.notify_all()


def _autocast_here() -> Callable[[], torch.autocast]:
    """Autocast as the calling thread has it: the setting is per thread, so lanes must take it over."""
    kind = 'cuda' if torch.is_autocast_enabled('cuda') else 'cpu'
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)
