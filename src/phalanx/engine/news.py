"""What ranks say of themselves along with the numbers of a step: that somebody wants the run to stop, and unusable samples."""

from itertools import islice
from typing import Any

from phalanx.engine.loader import Loader
from phalanx.parallel import dist


class News:
    """All ranks hear the same at the same step, so they can act on it together."""

    def __init__(self, loader: Loader[Any, Any]) -> None:
        self.loader = loader
        self.stop_asked = False  # of this rank, by a signal
        self.stop_agreed = False
        self.bad: dict[int, str] = {}  # samples skipped so far, over all ranks: number in the data set -> what is wrong
        self.announced = self.sent = 0  # of the unusable samples of this rank

    def own(self) -> list[float]:
        """For the next exchange: whether this rank was asked to stop, and how many new unusable samples it has."""
        new, self.announced = len(self.loader.bad) - self.announced, len(self.loader.bad)
        return [float(self.stop_asked), float(new)]

    def hear(self, stop: float, new_bad: float) -> list[str]:
        """Takes what the ranks said, summed; what is wrong with samples that were not known to be unusable, on any rank."""
        self.stop_agreed |= stop > 0
        if not new_bad:
            return []
        own = dict(islice(self.loader.bad.items(), self.sent, None))
        self.sent += len(own)
        found = {index: why for share in dist.gather_objects(own) for index, why in share.items()}
        known = set(self.bad.values())
        self.bad |= found
        return [why for why in dict.fromkeys(found[index] for index in sorted(found)) if why not in known]
