"""What a sample is before any family gives it a meaning: an image, the request for it, and the data set that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

S_co = TypeVar('S_co', covariant=True)  # one sample
T_co = TypeVar('T_co', covariant=True)  # what is true of an image: a label map, boxes, a text
R_co = TypeVar('R_co', covariant=True)  # the Source of a family
Split = Literal['train', 'eval']
Image = npt.NDArray[np.uint8]  # [H, W, 3] RGB
Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class Draw:
    """One request for a sample, and the only source of its randomness."""

    index: int  # which sample of the data set
    epoch: int = 0  # the pass over the data set that this draw belongs to
    step: int = 0  # the optimizer update that this draw belongs to
    seed: int = 0

    def of(self, index: int) -> Draw:
        """The same request for another sample."""
        return Draw(index, self.epoch, self.step, self.seed)

    def rng(self) -> Rng:
        """What is random about this sample: a function of (seed, epoch, index)."""
        return np.random.default_rng((self.seed, 1, self.epoch, self.index))

    def source_rng(self) -> Rng:
        """What is random about this sample before any transform, if its source draws it: a function of (seed, epoch, index)."""
        return np.random.default_rng((self.seed, 5, self.epoch, self.index))

    def step_rng(self) -> Rng:
        """What all samples of a step share, an input size say: a function of (seed, step)."""
        return np.random.default_rng((self.seed, 2, self.step))


class SampleError(Exception):
    """A sample whose files cannot be used. Its message names the path and what is wrong with it.

    The loader counts it and takes the next sample, up to the number that the recipe allows.
    """


class Source(Protocol[T_co]):
    """The samples of one split as a data set has them: images with what is true of them."""

    def __len__(self) -> int: ...
    def check_files(self) -> None:
        """Raises FileNotFoundError, naming the first, when files of samples are missing; reads none of them."""

    def name(self, index: int) -> str:
        """What a person calls the sample: the path of its image, mostly."""

    def read(self, draw: Draw) -> tuple[Image, T_co]:
        """The sample `draw.index`: an image [H, W, 3] and what is true of it, untransformed. Raises SampleError.

        The rest of `draw` is for sources that draw their samples, or draw which they show.
        """


class Data(Protocol[R_co]):
    """A data set, as a recipe describes it."""

    def split(self, split: Split) -> R_co:
        """Raises FileNotFoundError or ValueError, naming paths and lines, when files are missing or malformed."""


class DataOfClasses(Data[R_co], Protocol[R_co]):
    """One whose classes have names."""

    @property
    def class_names(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Drawn:
    """The base of a Source whose samples are drawn on demand."""

    kind: ClassVar[str]  # what a person calls its samples

    split: Split
    number: int

    def __len__(self) -> int:
        return self.number

    def check_files(self) -> None:
        """There are none."""

    def name(self, index: int) -> str:
        return f'{self.split} {self.kind} {index}'

    def rng(self, seed: int, index: int, *more: int) -> Rng:
        """Random numbers of one sample, the same in every epoch and others than those of the other split."""
        return np.random.default_rng((seed, ('train', 'eval').index(self.split), index, *more))


@dataclass(frozen=True)
class FromSource:
    """The base of what has its length and the names of its samples from its `source`."""

    source: Any  # Source

    when_absent = ''

    @property
    def cures(self) -> Mapping[str, str]:
        return {}

    @property
    def notes(self) -> Sequence[str]:
        """What a person should know of it: oddities of the annotations, samples left out. Mostly there is nothing."""
        return ()

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        """What a person calls the sample: its path, mostly."""
        return str(self.source.name(index))

    def original(self, draw: Draw) -> Image:
        """The picture of a sample before any transform. Raises SampleError."""
        image: Image = self.source.read(draw)[0]
        return image


@dataclass(frozen=True)
class Dataset(FromSource, Generic[S_co]):
    """The samples of one split, transformed; each family has its own."""

    transforms: tuple[Any, ...]
    split: Split

    def __getitem__(self, draw: Draw) -> S_co:
        """The sample that `draw` asks for. Raises SampleError when its files cannot be used."""
        raise NotImplementedError


@dataclass(frozen=True)
class Chosen(FromSource):
    """A Source of some samples of another."""

    numbers: npt.NDArray[np.int64]  # of the samples in the other

    def __len__(self) -> int:
        return len(self.numbers)

    def check_files(self) -> None:
        self.source.check_files()

    def name(self, index: int) -> str:
        return super().name(int(self.numbers[index]))

    def read(self, draw: Draw) -> Any:
        return self.source.read(draw.of(int(self.numbers[draw.index])))
