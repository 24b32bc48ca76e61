"""How an image of a table becomes the input of a network; sizes are those of PaddleOCR."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from phalanx.data.image import normalised
from phalanx.data.samples import Image


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
