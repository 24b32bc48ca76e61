"""The numbers of each step: read a step late, so that the host never waits for the device, and averaged for the log."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from phalanx.engine.meters import Later


class StepNumbers:
    """What ranks said of each step, summed over them: the terms of the loss, the gradient norm, and the news."""

    def __init__(self) -> None:
        self.unread: list[tuple[int, Later]] = []  # of the last steps, still on their way to the host
        self.logged: list[list[float]] = []  # of the steps since the last log line: terms, total

    def add(self, step: int, numbers: Tensor, terms: int, norm: Tensor) -> None:
        """`numbers`: totals and weights of so many terms, then news; `norm` [] that of the gradients. Nothing is read yet."""
        means = numbers[:terms] / numbers[terms : 2 * terms]
        self.unread.append((step, Later(torch.cat([means, means.sum()[None], numbers[2 * terms :], norm[None]]))))

    def read(self, keep: int) -> Iterator[tuple[int, list[float], float, Sequence[float]]]:
        """(step, terms and total, gradient norm, news) of all but the last `keep` steps, of each once."""
        while len(self.unread) > keep:
            step, later = self.unread.pop(0)
            *values, stop, new_bad, norm = later.read()
            self.logged.append(values)
            yield step, values, norm, (stop, new_bad)

    def means(self) -> tuple[int, list[float]]:
        """How many steps there were since the last call, and the means of their terms and total."""
        steps, logged = len(self.logged), self.logged
        self.logged = []
        return steps, [math.fsum(column) / steps for column in zip(*logged, strict=True)]
