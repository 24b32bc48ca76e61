"""Augmentations of table images; PaddleOCR has none.

They are built from keyword options and called with an image [H, W, 3] uint8, its table and the random generator of its sample.
"""

from collections.abc import Callable
from dataclasses import dataclass

from phalanx.data.colour import ColourDistortion
from phalanx.data.samples import Image, Rng
from phalanx.families.table.annotation import Table

Transform = Callable[[Image, Table, Rng], tuple[Image, Table]]


@dataclass(frozen=True, kw_only=True)
class RandomDistort(ColourDistortion):
    """Distort the colours of the image."""

    def __call__(self, image: Image, table: Table, rng: Rng) -> tuple[Image, Table]:
        return self.distort(image, rng), table


TRANSFORMS = {'random_distort': RandomDistort}
