"""What DB learns of each pixel: whether it lies within a text that was shrunk, and how near the border of a text it is.

Liao et al., Real-time Scene Text Detection with Differentiable Binarization, https://arxiv.org/abs/1911.08947, section 3.4;
details are PaddleOCR's. Shapes: H, W of the image, n points, e edges.
"""

from typing import Generic, NamedTuple, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.families.text_detection.data.source import Points, Texts
from phalanx.runtime.text_detection import area_and_length, offset

Mask = npt.NDArray[np.uint8]  # [H, W] 0 or 1
Floats = npt.NDArray[np.float32]
M = TypeVar('M')


class Targets(NamedTuple, Generic[M]):
    """The truth of each pixel: of one image, arrays [H, W], or of a batch, tensors [B, H, W] float32."""

    shrink_map: M  # 1 within a text, shrunk, else 0
    shrink_mask: M  # 1 where that is valid, 0 where a text is to be ignored
    threshold_map: M  # how near the border of a text is, from the least threshold to the largest
    threshold_mask: M  # 1 where that is valid: around the border of texts


def border_width(points: Points, ratio: float) -> float:
    """How far an outline [n, 2] is moved, in pixels."""
    area, length = area_and_length(points)
    return area * (1 - ratio**2) / length if length else 0.0


def shrink_maps(texts: Texts, height: int, width: int, *, ratio: float, least: float) -> tuple[Mask, Mask]:
    """Where shrunk texts are, and where that is valid: not on ignored texts, nor on those too small to be shrunk."""
    inside, valid = np.zeros((height, width), np.uint8), np.ones((height, width), np.uint8)
    for points, ignored in zip(texts.outlines, texts.ignored, strict=True):
        points = points.clip(0, np.array([width - 1, height - 1], np.float32))
        small = np.ptp(points, axis=0).min() < least or area_and_length(points)[0] < 1
        parts = [] if ignored or small else shrunk(points, ratio)
        for part in parts:
            cv2.fillPoly(inside, [part.astype(np.int32)], 1)
        if not parts:
            cv2.fillPoly(valid, [points.astype(np.int32)], 0)
    return inside, valid


def shrunk(points: Points, ratio: float) -> list[npt.NDArray[np.int64]]:
    """An outline [n, 2] made smaller; less so, by twice the ratio, when it would fall to pieces or vanish."""
    parts = []
    for share in np.arange(ratio, 1, ratio):
        parts = offset(points, -border_width(points, share))
        if len(parts) == 1:
            break
    return parts


def threshold_maps(texts: Texts, height: int, width: int, *, ratio: float, least: float, most: float) -> tuple[Floats, Mask]:
    """How near the border of a text each pixel is, from `least` to `most`, and where that is valid: on widened texts."""
    nearness, valid = np.zeros((height, width), np.float32), np.zeros((height, width), np.uint8)
    for points, ignored in zip(texts.outlines, texts.ignored, strict=True):
        reach = 0.0 if ignored else border_width(points, ratio)
        widened = offset(points, reach) if reach > 0 else []
        if not widened:
            continue
        cv2.fillPoly(valid, [widened[0].astype(np.int32)], 1)
        x0, y0 = widened[0].min(0).clip(0, (width - 1, height - 1))
        x1, y1 = widened[0].max(0).clip(0, (width - 1, height - 1)) + 1
        near = 1 - np.clip(distances(points, x0, y0, x1, y1) / np.float32(reach), 0, 1)
        part = nearness[y0:y1, x0:x1]
        np.maximum(part, near, out=part)
    return nearness * np.float32(most - least) + np.float32(least), valid


def distances(points: Points, x0: int, y0: int, x1: int, y1: int) -> Floats:
    """How far each pixel [y1 - y0, x1 - x0] is from the nearest edge of an outline [n, 2].

    From an edge that is seen at an obtuse angle it is as far as from the line, from any other as far as from the nearer end:
    that is PaddleOCR's distance, which far from the middle of an edge is larger than the true one.
    """
    y, x = np.mgrid[y0:y1, x0:x1].astype(np.float32)
    ends = points.astype(np.float32)
    nearest = np.full(x.shape, np.inf, np.float32)
    for (ax, ay), (bx, by) in zip(ends, np.roll(ends, -1, axis=0), strict=True):
        length = np.hypot(bx - ax, by - ay)
        if length == 0:
            continue
        ux, uy, vx, vy = ax - x, ay - y, bx - x, by - y
        to_line = np.abs(ux * vy - uy * vx) / length
        to_end = np.sqrt(np.minimum(ux * ux + uy * uy, vx * vx + vy * vy))
        np.minimum(nearest, np.where(ux * vx + uy * vy <= 0, to_line, to_end), out=nearest)
    return nearest
