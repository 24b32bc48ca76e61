"""Control flags that ranks exchange with each step's all-reduce: stop requests and counts of new unusable samples."""

import threading
from itertools import islice
from typing import Any

from phalanx.engine.loader import Loader
from phalanx.parallel import dist


class StepFlags:
    """Flags of this rank, and those agreed on by all ranks: each rank receives the same sums at the same step."""

    def __init__(self, loader: Loader[Any, Any]) -> None:
        self.loader = loader
        self.signalled = False  # this rank received a stop signal
        self.stop: threading.Event | None = None  # of the caller of `phalanx.train`
        self.stop_agreed = False  # all ranks know of a stop request
        self.bad: dict[int, str] = {}  # samples skipped so far, over all ranks: index in the data set -> reason
        self.announced = self.sent = 0  # unusable samples of this rank: counted in flags, and sent with reasons to all ranks

    @property
    def stop_asked(self) -> bool:
        """True if this rank was asked to stop."""
        return self.signalled or (self.stop is not None and self.stop.is_set())

    def collect(self) -> list[float]:
        """Flags of this rank for the next step [2]: stop request, number of new unusable samples."""
        new, self.announced = len(self.loader.bad) - self.announced, len(self.loader.bad)
        return [float(self.stop_asked), float(new)]

    def receive(self, stop: float, new_bad: float) -> list[str]:
        """Apply the flags of a step, summed over ranks. Collective.

        Returns the reasons for samples not known to be unusable before.
        """
        # Sums are equal on all ranks, so that all take the same decision at the same step.
        self.stop_agreed |= stop > 0
        if not new_bad:
            return []
        # Rare, so reasons travel as objects, in a collective of their own that all ranks enter since the count is not zero.
        own = dict(islice(self.loader.bad.items(), self.sent, None))
        self.sent += len(own)
        new = {index: why for share in dist.gather_objects(own) for index, why in share.items()}
        # In a mixture of data sets one bad file has another index in each epoch: report a reason once.
        known = set(self.bad.values())
        self.bad |= new
        return [why for why in dict.fromkeys(new[index] for index in sorted(new)) if why not in known]
