"""What a data set of pages gives: a Data makes the splits, a Source reads the samples of one. Shapes: N texts, n points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.data import samples
from phalanx.data.folders import Problems, check_folder
from phalanx.data.listed import Listed
from phalanx.data.samples import Split

Points = npt.NDArray[np.float32]  # [n, 2] x, y in pixels, the outline of a text
ILLEGIBLE = '###'
PICTURES = ('.jpg', '.jpeg', '.png', '.bmp')
IGNORED_TEXTS = (ILLEGIBLE, '*')  # transcriptions of what cannot be read and is ignored


@dataclass(frozen=True)
class Texts:
    """The texts of an image: outlines, what is written in each, and whether it is left out of the evaluation."""

    outlines: tuple[Points, ...] = ()  # N
    strings: tuple[str, ...] = ()  # N
    ignored: tuple[bool, ...] = ()  # N

    def __len__(self) -> int:
        return len(self.outlines)

    def moved(self, outlines: Sequence[Points]) -> Texts:
        """The same texts in other places."""
        return Texts(tuple(outlines), self.strings, self.ignored)

    def with_one(self, points: Points, string: str) -> Texts:
        """These and one more, which counts."""
        return Texts((*self.outlines, points), (*self.strings, string), (*self.ignored, False))

    def at(self, places: Sequence[int]) -> Texts:
        """Some of the texts."""
        rows = [(self.outlines[place], self.strings[place], self.ignored[place]) for place in places]
        return Texts(*zip(*rows, strict=True)) if rows else Texts()


def texts_of(pairs: Sequence[tuple[Points, str]]) -> Texts:
    """Texts from outlines and transcriptions, of which some say that the text is to be ignored."""
    return Texts(
        tuple(points for points, _ in pairs),
        tuple(text for _, text in pairs),
        tuple(text in IGNORED_TEXTS for _, text in pairs),
    )


def outline(values: Any, where: str) -> Points:
    """The outline that an annotation gives as pairs. Raises ValueError, beginning with `where`."""
    is_list = isinstance(values, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in values)
    if not is_list or not all(is_number(value) for pair in values for value in pair):
        raise ValueError(f'{where}: an outline is a list of points [x, y] in pixels, got {str(values)[:80]}')
    if len(values) < 3:
        raise ValueError(f'{where}: an outline has at least 3 points, got {len(values)}')
    return np.array(values, np.float32)


def is_number(value: Any) -> bool:
    """Whether `value` is one that a place in an image can have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 2**24


@dataclass(frozen=True, kw_only=True)
class InFolders:
    """The base of a data set with a file of labels for each image: folders of both, relative to `root`."""

    root: Path
    train_images: str
    train_labels: str
    eval_images: str
    eval_labels: str

    def split(self, split: Split) -> Pages:
        of_split = (self.train_images, self.train_labels) if split == 'train' else (self.eval_images, self.eval_labels)
        images, labels = (self.root / folder for folder in of_split)
        for folder in (images, labels):
            check_folder(folder)
        names = sorted(path.name for path in images.iterdir() if path.suffix.lower() in PICTURES)
        if not names:
            raise FileNotFoundError(f'{images}: holds no images')
        problems = Problems()
        texts = tuple(texts_of(self.pairs(labels, Path(name).stem, problems)) for name in names)
        problems.check()
        return Pages(images, tuple(names), texts)

    def pairs(self, labels: Path, stem: str, problems: Problems) -> list[tuple[Points, str]]:
        """Outlines and transcriptions of the image `stem`, from its file in `labels`. Raises FileNotFoundError."""
        raise NotImplementedError


Source = samples.Source[Texts]  # outlines are in pixels of the image
Data = samples.Data[Source]
Pages = Listed[Texts]
