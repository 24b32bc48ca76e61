"""Views of an image that a network sees in turn: scales, flips and sliding windows."""

import math
from collections.abc import Mapping
from itertools import pairwise, product
from typing import Any

from phalanx.runtime.prepare import Size, size_of

SLACK = 4  # pixels by which the cores of neighbouring windows overlap


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
