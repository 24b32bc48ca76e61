"""Views of an image that a network sees in turn: scales, flips and sliding windows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from phalanx.runtime.prepare import Size, size_of

SLACK = 4  # pixels by which the cores of neighbouring windows overlap


@dataclass(frozen=True, kw_only=True)
class Views:
    """Windows, scales and flips of an image. Raises ValueError for settings that leave pixels out."""

    window: tuple[int, int] | None = None
    window_stride: tuple[int, int] | None = None
    scales: tuple[float, ...] = (1.0,)
    flip_horizontal: bool = False

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0:
            raise ValueError(f'scales must be one or more numbers above 0, got {list(self.scales)}')
        if (self.window is None) != (self.window_stride is None):
            raise ValueError('windows need both window and window_stride (height, width); only one of them is given')
        if self.window and self.window_stride:
            # A stride above the side of a window would leave pixels out.
            pairs = list(zip(self.window_stride, self.window, strict=True))
            if any(not 1 <= step <= side for step, side in pairs):
                stride, window = (f'[{height}, {width}]' for height, width in zip(*pairs, strict=True))
                raise ValueError(
                    f'window_stride must be at least 1 and at most window, or pixels are left out; got {stride} for {window}'
                )


def flips(*, horizontal: bool, vertical: bool) -> list[tuple[int, ...]]:
    """Dimensions to flip for each view of images [B, C, H, W]; the first view is not flipped."""
    rows = [(), (2,)] if vertical else [()]
    columns = [(), (3,)] if horizontal else [()]
    return [(*first, *second) for first, second in product(rows, columns)]


def window_sizes(inference: Mapping[str, Any]) -> tuple[Size, Size] | None:
    """(height, width) of sliding windows, and their strides; None without windows."""
    return (size_of(inference, 'window'), size_of(inference, 'window_stride')) if inference['window'] is not None else None


def window_starts(length: int, window: int, stride: int) -> list[int]:
    """Starts of sliding windows along a side of `length` pixels."""
    count = max(0, math.ceil((length - window) / stride)) + 1
    return [max(0, min(number * stride, length - window)) for number in range(count)]


def window_cores(length: int, window: int, stride: int) -> list[tuple[int, float, float]]:
    """Start of each window along a side of `length` pixels, and the range of centres of objects that count in it.

    Ranges meet in the middle of an overlap, so that an object no longer than the overlap minus 2 SLACK lies whole within the
    window that counts it, and what another window shows of it has its centre elsewhere. They overlap by SLACK pixels on both
    sides, for boxes that differ a little between two windows; suppression removes the second.
    """
    starts = window_starts(length, window, stride)
    seams = [(before + window + after) / 2 for before, after in pairwise(starts)]
    lower, upper = [-math.inf, *(seam - SLACK for seam in seams)], [*(seam + SLACK for seam in seams), math.inf]
    return list(zip(starts, lower, upper, strict=True))
