"""What a sample is before any family gives it a meaning: an image, the request for it, and the data set that answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

S_co = TypeVar('S_co', covariant=True)  # one sample
Split = Literal['train', 'eval']
Image = npt.NDArray[np.uint8]  # [H, W, 3] RGB


@dataclass(frozen=True, slots=True)
class Draw:
    """One request for a sample, and the only source of its randomness."""

    index: int  # which sample of the data set
    epoch: int  # the pass over the data set that this draw belongs to
    step: int  # the optimizer update that this draw belongs to
    seed: int

    def of(self, index: int) -> Draw:
        """The same request for another sample."""
        return Draw(index, self.epoch, self.step, self.seed)

    def rng(self) -> np.random.Generator:
        """What is random about this sample: a function of (seed, epoch, index)."""
        return np.random.default_rng((self.seed, 1, self.epoch, self.index))

    def step_rng(self) -> np.random.Generator:
        """What all samples of a step share, an input size say: a function of (seed, step)."""
        return np.random.default_rng((self.seed, 2, self.step))


class SampleError(Exception):
    """A sample whose files cannot be used. Its message names the path and what is wrong with it.

    The loader counts it and takes the next sample, up to the number that the recipe allows.
    """


class Dataset(Protocol[S_co]):
    @property
    def notes(self) -> Sequence[str]:
        """What a person should know of it: oddities of the annotations, samples left out. Mostly there is nothing."""

    def __len__(self) -> int: ...
    def __getitem__(self, draw: Draw) -> S_co:
        """The sample that `draw` asks for. Raises SampleError when its files cannot be used."""

    def name(self, index: int) -> str:
        """What a person calls the sample: its path, mostly."""

    def original(self, draw: Draw) -> Image:
        """The picture of a sample before any transform. Raises SampleError."""
