"""Image files that annotations list, with what they say of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from phalanx.data.folders import check_present
from phalanx.data.image import read_image
from phalanx.data.samples import Draw, Image

T = TypeVar('T')  # what is true of an image


@dataclass(frozen=True)
class Listed(Generic[T]):
    """A Source of them."""

    root: Path
    paths: Sequence[str]  # of the images, relative to it
    truths: Sequence[T]

    def __len__(self) -> int:
        return len(self.paths)

    def check_files(self) -> None:
        check_present(self.root, self.paths)

    def name(self, index: int) -> str:
        return str(self.root / self.paths[index])

    def read(self, draw: Draw) -> tuple[Image, T]:
        return read_image(self.name(draw.index)), self.truths[draw.index]
