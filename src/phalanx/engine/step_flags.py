"""Flags that ranks exchange with the numbers of each step: a request to stop, and the number of new unusable samples."""

from itertools import islice
from typing import Any

from phalanx.engine.loader import Loader
from phalanx.parallel import dist


class StepFlags:
    """The flags of this rank, and those that all ranks have agreed on: each rank receives the same sums at the same step."""

    def __init__(self, loader: Loader[Any, Any]) -> None:
        self.loader = loader
        self.stop_asked = False  # of this rank, by a signal
        self.stop_agreed = False  # by all ranks
        self.bad: dict[int, str] = {}  # samples skipped so far, over all ranks: number in the data set -> reason
        self.announced = self.sent = 0  # of the unusable samples of this rank: counted in flags, and described to all ranks

    def collect(self) -> list[float]:
        """The flags of this rank for the next step [2]: whether it was asked to stop, its number of new unusable samples."""
        new, self.announced = len(self.loader.bad) - self.announced, len(self.loader.bad)
        return [float(self.stop_asked), float(new)]

    def receive(self, stop: float, new_bad: float) -> list[str]:
        """Takes the flags of a step, summed over ranks, which call this together.

        Returns the reasons for samples that no rank knew to be unusable before.
        """
        self.stop_agreed |= stop > 0
        if not new_bad:
            return []
        own = dict(islice(self.loader.bad.items(), self.sent, None))
        self.sent += len(own)
        found = {index: why for share in dist.gather_objects(own) for index, why in share.items()}
        known = set(self.bad.values())
        self.bad |= found
        return [why for why in dict.fromkeys(found[index] for index in sorted(found)) if why not in known]
