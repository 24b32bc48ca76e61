"""Texts of a page, and types of text detection data sets. Shapes: N texts, n points."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.data import samples
from phalanx.data.folders import Problems, check_folder
from phalanx.data.listed import Listed, Packed, Packer, digest_arrays
from phalanx.data.samples import Split
from phalanx.data.texts import IGNORED_TEXTS, check_outline

Points = npt.NDArray[np.float32]  # [n, 2] x, y in pixels, outline of a text
PICTURES = ('.jpg', '.jpeg', '.png', '.bmp')


@dataclass(frozen=True)
class Texts:
    """Texts of an image: outlines, transcriptions, and flags of texts that loss and metric ignore."""

    outlines: tuple[Points, ...] = ()  # N
    strings: tuple[str, ...] = ()  # N
    ignored: tuple[bool, ...] = ()  # N

    def __len__(self) -> int:
        return len(self.outlines)

    def with_outlines(self, outlines: Sequence[Points]) -> Texts:
        """Return the same texts with other outlines."""
        return Texts(tuple(outlines), self.strings, self.ignored)

    def append(self, points: Points, string: str) -> Texts:
        """Return these texts and another one, which is not ignored."""
        return Texts((*self.outlines, points), (*self.strings, string), (*self.ignored, False))

    def select(self, indices: Sequence[int]) -> Texts:
        """Return the texts at `indices`."""
        rows = [(self.outlines[index], self.strings[index], self.ignored[index]) for index in indices]
        return Texts(*zip(*rows, strict=True)) if rows else Texts()


class PackedTexts(Sequence[Texts]):
    """Texts of many images in a few arrays, which the ranks of a node share; as objects they would take 1.5 kB per image."""

    def __init__(self, of_images: Iterable[Texts]) -> None:
        texts, ends, points, ignored, strings = array('q', [0]), array('q', [0]), array('f'), array('b'), Packer()
        for image in of_images:
            for outline, string, flag in zip(image.outlines, image.strings, image.ignored, strict=True):
                points.frombytes(np.ascontiguousarray(outline, np.float32).tobytes())
                ends.append(len(points) // 2)
                strings.append(string)
                ignored.append(flag)
            texts.append(len(ignored))
        self._texts, self._ends = np.frombuffer(texts, np.int64), np.frombuffer(ends, np.int64)  # ends of images, and of texts
        self._points = np.frombuffer(points, np.float32).reshape(-1, 2)
        self._ignored, self._strings = np.frombuffer(ignored, np.bool_), strings.pack()

    def __len__(self) -> int:
        return len(self._texts) - 1

    def __getitem__(self, index: int) -> Texts:  # type: ignore[override] # no slices
        rows = range(*self._texts[index : index + 2].tolist())
        outlines = tuple(self._points[slice(*self._ends[row : row + 2])].copy() for row in rows)
        return Texts(outlines, tuple(self._strings[row] for row in rows), tuple(self._ignored[row].item() for row in rows))

    def digest(self) -> bytes:
        return digest_arrays(self._texts, self._ends, self._points, self._ignored) + self._strings.digest()


def make_texts(pairs: Sequence[tuple[Points, str]]) -> Texts:
    """Build Texts from outlines and transcriptions; transcriptions in IGNORED_TEXTS mark ignored ones."""
    return Texts(
        tuple(points for points, _ in pairs),
        tuple(text for _, text in pairs),
        tuple(text in IGNORED_TEXTS for _, text in pairs),
    )


def parse_outline(values: Any, where: str) -> Points:
    """Return an outline from a list of pairs. Raises ValueError that starts with `where`."""
    return np.array(check_outline(values, where), np.float32)


@dataclass(frozen=True, kw_only=True)
class LabelFilePerImage:
    """Base class of data sets with one label file per image; folders are relative to `root`."""

    root: Path
    train_images: str
    train_labels: str
    eval_images: str
    eval_labels: str

    def split(self, split: Split) -> Pages:
        """Read the label files of a split. Raises FileNotFoundError, and ValueError with all malformed files."""
        of_split = (self.train_images, self.train_labels) if split == 'train' else (self.eval_images, self.eval_labels)
        images, labels = (self.root / folder for folder in of_split)
        for folder in (images, labels):
            check_folder(folder)
        names = sorted(path.name for path in images.iterdir() if path.suffix.lower() in PICTURES)
        if not names:
            raise FileNotFoundError(f'{images}: contains no images')
        # Collect the faults of all files before reporting them.
        problems = Problems()
        texts = PackedTexts(make_texts(self.read_pairs(labels, Path(name).stem, problems)) for name in names)
        problems.check()
        return Pages(images, Packed.of(names), texts)

    def read_pairs(self, labels: Path, stem: str, problems: Problems) -> list[tuple[Points, str]]:
        """Return outlines and transcriptions of the image `stem`, from its file in `labels`. Raises FileNotFoundError."""
        raise NotImplementedError


Source = samples.Source[Texts]  # outlines are in pixels of the image
Data = samples.Data[Source]
Pages = Listed[Texts]
