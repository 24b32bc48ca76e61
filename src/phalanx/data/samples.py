"""Samples before a family gives them meaning: the request (Draw), the Source that answers it, and data sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

S_co = TypeVar('S_co', covariant=True)  # one sample
T_co = TypeVar('T_co', covariant=True)  # annotation of an image: a label map, boxes, a text
R_co = TypeVar('R_co', covariant=True)  # the Source of a family
Split = Literal['train', 'eval']
Image = npt.NDArray[np.uint8]  # [H, W, 3] RGB
Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class Draw:
    """Request for a sample, and the only source of its randomness."""

    index: int  # number of the sample in the data set
    epoch: int = 0  # pass over the data set
    step: int = 0  # optimizer update
    seed: int = 0

    def of(self, index: int) -> Draw:
        """The same request for another sample."""
        return Draw(index, self.epoch, self.step, self.seed)

    def rng(self) -> Rng:
        """Random generator of this sample: a function of (seed, epoch, index)."""
        # The second number separates streams: 0 epoch order, 1 sample, 2 step, 3 mixture, 4 rendered evaluation, 5 source,
        # 6 resampling.
        return np.random.default_rng((self.seed, 1, self.epoch, self.index))

    def source_rng(self) -> Rng:
        """Random generator for a Source that generates the sample: a function of (seed, epoch, index)."""
        return np.random.default_rng((self.seed, 5, self.epoch, self.index))

    def step_rng(self) -> Rng:
        """Random generator shared by all samples of a step, for an input size for example: a function of (seed, step)."""
        return np.random.default_rng((self.seed, 2, self.step))


class SampleError(Exception):
    """Error for a sample whose files cannot be used. Its message names the path and the reason.

    The loader counts it and takes the next sample, up to the limit in the recipe.
    """


class Source(Protocol[T_co]):
    """Samples of one split of a data set, untransformed: images with their annotations."""

    def __len__(self) -> int: ...
    def check_files(self) -> None:
        """Raise FileNotFoundError, naming the first, when files of samples are missing; reads none of them."""

    def name(self, index: int) -> str:
        """Name of the sample in messages, usually the path of its image."""

    def read(self, draw: Draw) -> tuple[Image, T_co]:
        """Read sample `draw.index`: an image [H, W, 3] and its annotation, untransformed. Raises SampleError.

        The rest of `draw` is for sources that generate or choose samples at random.
        """


class Data(Protocol[R_co]):
    """Data set of a recipe."""

    def split(self, split: Split) -> R_co:
        """Source of a split. Raises FileNotFoundError or ValueError, naming paths and lines, for missing or malformed files."""


class DataOfClasses(Data[R_co], Protocol[R_co]):
    """Data set with class names."""

    @property
    def class_names(self) -> tuple[str, ...]: ...


def digest_names(source: Any) -> bytes:
    """Digest of the names of all samples of a Source: by its own method `digest`, if it has one, which need not form them."""
    if hasattr(source, 'digest'):
        return bytes(source.digest())
    digest = hashlib.sha256()
    for index in range(len(source)):
        digest.update(source.name(index).encode('utf-8', 'surrogateescape') + b'\0')  # ('ab', 'c') is not ('a', 'bc')
    return digest.digest()


def files_of(source: Any, draw: Draw) -> list[str]:
    """Files that reading a sample opens: by the method `files` of its Source, if it has one, else the one of its name."""
    return list(source.files(draw)) if hasattr(source, 'files') else [source.name(draw.index)]


@dataclass(frozen=True)
class GeneratedSource:
    """Base of a Source whose samples are generated on demand."""

    kind: ClassVar[str]  # name of its samples in messages

    split: Split
    number: int

    def __len__(self) -> int:
        return self.number

    def check_files(self) -> None:
        """Nothing to check: there are no files."""

    def name(self, index: int) -> str:
        return f'{self.split} {self.kind} {index}'

    def rng(self, seed: int, index: int, *more: int) -> Rng:
        """Random generator of one sample, the same in every epoch and different in the two splits."""
        return np.random.default_rng((seed, ('train', 'eval').index(self.split), index, *more))


@dataclass(frozen=True)
class FromSource:
    """Base of classes that wrap a Source: length, names and original images come from `source`."""

    source: Any  # Source

    when_absent = ''

    @property
    def cures(self) -> Mapping[str, str]:
        return {}

    @property
    def notes(self) -> Sequence[str]:
        """Remarks for the user: oddities of the annotations, samples left out. Usually empty."""
        return [f'{count} {what}' for what, count in getattr(self.source, 'notes', {}).items()]

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        """Name of the sample in messages, usually its path."""
        return str(self.source.name(index))

    def files(self, draw: Draw) -> list[str]:
        return files_of(self.source, draw)

    def original(self, draw: Draw) -> Image:
        """Image of a sample before any transform. Raises SampleError."""
        image: Image = self.source.read(draw)[0]
        return image


@dataclass(frozen=True)
class Dataset(FromSource, Generic[S_co]):
    """Transformed samples of one split; each family has its own subclass."""

    transforms: tuple[Any, ...]
    split: Split

    def __getitem__(self, draw: Draw) -> S_co:
        """Sample of the request `draw`. Raises SampleError when its files cannot be used."""
        raise NotImplementedError


@dataclass(frozen=True)
class SubsetSource(FromSource):
    """Source of a subset of the samples of another."""

    numbers: npt.NDArray[np.int64]  # of the samples in the other

    def __len__(self) -> int:
        return len(self.numbers)

    def check_files(self) -> None:
        self.source.check_files()

    def digest(self) -> bytes:
        return digest_names(self.source) + self.numbers.tobytes()

    def name(self, index: int) -> str:
        return super().name(int(self.numbers[index]))

    def files(self, draw: Draw) -> list[str]:
        return super().files(draw.of(int(self.numbers[draw.index])))

    def read(self, draw: Draw) -> Any:
        return self.source.read(draw.of(int(self.numbers[draw.index])))


@dataclass(frozen=True)
class ResampledSource:
    """Samples of another Source, each several times per epoch, or only in some epochs.

    An epoch takes sample i floor or ceil of `repeats[i]` times, with that mean over the epochs (systematic sampling), so that
    all epochs have the same length: the sum of `repeats`, rounded. The selection is a function of (seed, epoch).
    """

    source: Any
    ends: npt.NDArray[np.float64]  # [N] cumulative sum of `repeats`
    notes: Mapping[str, int] = field(default_factory=dict)  # oddities of the annotations and their number

    def __len__(self) -> int:
        return max(1, round(float(self.ends[-1])))

    def check_files(self) -> None:
        self.source.check_files()

    def digest(self) -> bytes:
        return digest_names(self.source) + self.ends.tobytes()

    def name(self, index: int) -> str:
        """Name of the sample at the middle of the interval of `index`; its neighbours may take its place in some epochs."""
        return str(self.source.name(self._chosen(index, 0.5)))

    def files(self, draw: Draw) -> list[str]:
        return files_of(self.source, self._draw_of(draw))

    def read(self, draw: Draw) -> Any:
        return self.source.read(self._draw_of(draw))

    def _draw_of(self, draw: Draw) -> Draw:
        # One random shift for the whole epoch: a function of (seed, epoch) alone, so that workers and ranks agree.
        return draw.of(self._chosen(draw.index, np.random.default_rng((draw.seed, 6, draw.epoch)).random()))

    def _chosen(self, index: int, shift: float) -> int:
        position = (index + shift) * (float(self.ends[-1]) / len(self))
        return min(int(np.searchsorted(self.ends, position, side='right')), len(self.ends) - 1)
