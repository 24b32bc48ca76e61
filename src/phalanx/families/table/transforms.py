"""Augmentations of the image of a table, and how it becomes the input of a network; sizes are those of PaddleOCR.

Augmentations are built from keyword options and called with an image [H, W, 3] uint8, its table and the random numbers of its
sample. The original has none.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from phalanx.data.colour import ColourDistortion
from phalanx.data.image import normalised
from phalanx.data.samples import Image, Rng
from phalanx.families.table.annotation import Table

Transform = Callable[[Image, Table, Rng], tuple[Image, Table]]


@dataclass(frozen=True, kw_only=True)
class RandomDistort(ColourDistortion):
    def __call__(self, image: Image, table: Table, rng: Rng) -> tuple[Image, Table]:
        return self.distorted(image, rng), table


def padded(image: Image, side: int) -> Image:
    """The image in the upper left corner of a square."""
    H, W = image.shape[:2]
    return np.pad(image, ((0, side - H), (0, side - W), (0, 0)))


def network_input(images: Tensor, sizes: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """What the network takes of padded RGB `images` [B, 3, side, side] uint8 of `sizes` [B, 2] (height, width) without padding.

    Blue comes first and padding is 0 after normalisation, as in the training of the published weights.
    """
    inputs = normalised(images.flip(1), mean, std)
    places = torch.arange(images.shape[-1], device=images.device)
    is_row, is_column = (places < size[:, None] for size in sizes.unbind(1))  # [B, side] each
    return inputs * (is_row[:, None, :, None] & is_column[:, None, None, :])


TRANSFORMS = {'random_distort': RandomDistort}
