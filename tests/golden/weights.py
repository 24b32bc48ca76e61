"""The inputs and weights that the golden numbers were made with: drawn by rule, so that none of them needs storing.

Every array is a function of its original (Paddle) name, so any implementation can have the same.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


def draw(name: str, shape: Sequence[int], gain: float = 2.0) -> FloatArray:
    """The weight, bias, scale or running statistic called `name`, as float32 values of `shape`."""
    rng = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
    if name.endswith('_mean'):
        values = 0.1 * rng.standard_normal(shape)
    elif name.endswith(('_variance', '.alpha')) or (len(shape) == 1 and name.endswith('weight')):
        values = 0.5 + rng.random_sample(shape)
    elif len(shape) == 1:
        values = 0.1 * rng.standard_normal(shape)
    else:
        fan_in = shape[0] if len(shape) == 2 else math.prod(shape[1:])  # a Paddle linear layer is [in, out]
        values = rng.standard_normal(shape) * math.sqrt(gain / fan_in)
    return values.astype(np.float32)


def segmentation_state(shapes: Sequence[tuple[str, Sequence[int]]], gain: float) -> dict[str, FloatArray]:
    """The state of an original segmentation network, of (name, shape) of each entry.

    The attention scales of PP-LiteSeg are 1; the last convolution of U-Net is stored twice.
    """
    state = {name: np.ones(1, np.float32) if name.endswith('._scale') else draw(name, shape, gain) for name, shape in shapes}
    for second, first in (('conv.weight', 'cls.weight'), ('conv.bias', 'cls.bias')):
        if second in state:
            state[second] = state[first]
    return state


def images(shape: Sequence[int]) -> FloatArray:
    """The input images, [B, 3, H, W]."""
    return np.random.RandomState(0).standard_normal(shape).astype(np.float32)


def segmentation_labels(shape: Sequence[int], num_classes: int) -> npt.NDArray[np.int64]:
    """The label maps of images of `shape` [B, 3, H, W]; one pixel in twenty is void."""
    rng = np.random.RandomState(1)
    size = (shape[0], *shape[2:])
    labels = rng.randint(0, num_classes, size)
    labels[rng.random_sample(size) < 0.05] = 255
    return labels.astype(np.int64)
