"""Targets of DB: shrink maps (probability maps) and threshold maps.

Liao et al., Real-time Scene Text Detection with Differentiable Binarization, https://arxiv.org/abs/1911.08947, section 3.4;
shrinking after PSENet, details as in PaddleOCR. Shapes: H, W of the image, n points.
"""

from typing import Generic, NamedTuple, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.families.text_detection.data.source import Points, Texts
from phalanx.runtime.text_detection import area_and_length, offset_outline

Mask = npt.NDArray[np.uint8]  # [H, W] 0 or 1
Floats = npt.NDArray[np.float32]
M = TypeVar('M')


class Targets(NamedTuple, Generic[M]):
    """Targets per pixel: arrays [H, W] of one image, or tensors [B, H, W] float32 of a batch."""

    shrink_map: M  # 1 inside shrunk texts, else 0
    shrink_mask: M  # 1 for valid pixels, 0 on ignored texts
    threshold_map: M  # threshold_max on the border of a text, falling to threshold_min with the distance from it
    threshold_mask: M  # 1 for valid pixels: inside dilated texts


def shrink_distance(points: Points, ratio: float) -> float:
    """Return the offset D = A (1 - ratio²) / L in pixels for an outline [n, 2] of area A and length L."""
    area, length = area_and_length(points)
    return area * (1 - ratio**2) / length if length else 0.0


def make_shrink_maps(texts: Texts, height: int, width: int, *, ratio: float, min_size: float) -> tuple[Mask, Mask]:
    """Return the shrink map [H, W] and its mask, which excludes ignored texts and texts too small to shrink."""
    inside, valid = np.zeros((height, width), np.uint8), np.ones((height, width), np.uint8)
    for points, ignored in zip(texts.outlines, texts.ignored, strict=True):
        points = points.clip(0, np.array([width - 1, height - 1], np.float32))
        # Texts that cannot be learned are masked out instead of becoming background.
        small = np.ptp(points, axis=0).min() < min_size or area_and_length(points)[0] < 1
        # A text that falls apart when shrunk gives several regions.
        parts = [] if ignored or small else shrink_outline(points, ratio)
        for part in parts:
            cv2.fillPoly(inside, [part.astype(np.int32)], 1)
        if not parts:
            cv2.fillPoly(valid, [points.astype(np.int32)], 0)
    return inside, valid


def shrink_outline(points: Points, ratio: float) -> list[npt.NDArray[np.int64]]:
    """Shrink an outline [n, 2]; if it would fall apart or vanish, shrink it less, at multiples of `ratio`."""
    parts = []
    for share in np.arange(ratio, 1, ratio):
        parts = offset_outline(points, -shrink_distance(points, share))
        if len(parts) == 1:
            break
    return parts


def make_threshold_maps(texts: Texts, height: int, width: int, *, ratio: float, low: float, high: float) -> tuple[Floats, Mask]:
    """Return the threshold map [H, W], from `low` to `high`, and its mask, which covers dilated texts."""
    nearness, valid = np.zeros((height, width), np.float32), np.zeros((height, width), np.uint8)
    for points, ignored in zip(texts.outlines, texts.ignored, strict=True):
        # Dilate the text by as much as the shrink map shrinks it.
        # Ignored texts have no threshold map, and their pixels stay out of the loss.
        distance = 0.0 if ignored else shrink_distance(points, ratio)
        dilated = offset_outline(points, distance) if distance > 0 else []
        if not dilated:
            continue
        cv2.fillPoly(valid, [dilated[0].astype(np.int32)], 1)
        # Nearness is 1 on the outline and 0 at `distance` from it; computed within the bounding box only, for speed.
        x0, y0 = dilated[0].min(0).clip(0, (width - 1, height - 1))
        x1, y1 = dilated[0].max(0).clip(0, (width - 1, height - 1)) + 1
        near = 1 - np.clip(edge_distances(points, x0, y0, x1, y1, distance) / np.float32(distance), 0, 1)
        part = nearness[y0:y1, x0:x1]  # where texts overlap, the nearer border counts
        np.maximum(part, near, out=part)
    # `high` on the border, `low` at `distance` from it and beyond.
    return nearness * np.float32(high - low) + np.float32(low), valid


def edge_distances(points: Points, x0: int, y0: int, x1: int, y1: int, reach: float) -> Floats:
    """Return the distance of each pixel [y1 - y0, x1 - x0] from the nearest edge of an outline [n, 2]; inf if above `reach`,
    or some larger number.

    The distance from an edge is that from its line if the pixel sees the edge at an obtuse angle, else that from its nearer
    end. This is PaddleOCR's definition; away from the middle of an edge it is larger than the true distance.
    """
    whole_y, whole_x = np.arange(y0, y1, dtype=np.float32)[:, None], np.arange(x0, x1, dtype=np.float32)
    ends = points.astype(np.float32)
    nearest = np.full((y1 - y0, x1 - x0), np.inf, np.float32)
    for (ax, ay), (bx, by) in zip(ends, np.roll(ends, -1, axis=0), strict=True):
        # With vectors u, v to both ends: |u x v| / length is the distance from the line, u . v <= 0 an obtuse angle.
        length = np.hypot(bx - ax, by - ay)
        if length == 0:
            continue
        # Only pixels that may be within reach: a curved outline has many short edges.
        left, top = int(max(0, min(ax, bx) - reach - 1 - x0)), int(max(0, min(ay, by) - reach - 1 - y0))
        right, bottom = int(max(0, max(ax, bx) + reach + 2 - x0)), int(max(0, max(ay, by) + reach + 2 - y0))
        x, y, window = whole_x[left:right], whole_y[top:bottom], nearest[top:bottom, left:right]
        ux, uy, vx, vy = ax - x, ay - y, bx - x, by - y
        to_line = np.abs(ux * vy - uy * vx) / length
        to_end = np.sqrt(np.minimum(ux * ux + uy * uy, vx * vx + vy * vy))
        np.minimum(window, np.where(ux * vx + uy * vy <= 0, to_line, to_end), out=window)
    return nearest
