"""Intersection of polygons. Shapes: n points."""

import numpy as np
import pyclipper

from phalanx.families.text_detection.data.source import Points
from phalanx.runtime.text_detection import area_and_length

UNITS_PER_PIXEL = 2**12  # pyclipper works with integers


def is_simple(points: Points) -> bool:
    """True if an outline has an area and does not intersect itself."""
    # A self-intersecting outline falls into parts, or changes its area, when it is simplified.
    parts = pyclipper.SimplifyPolygon(to_integers(points), pyclipper.PFT_EVENODD)
    area = area_and_length(points)[0]
    return (
        len(parts) == 1 and area > 0 and abs(abs(pyclipper.Area(parts[0])) / UNITS_PER_PIXEL**2 - area) < 1e-2 * max(1.0, area)
    )


def intersection_area(a: Points, b: Points) -> float:
    """Return the area of the intersection of two simple outlines, in square pixels."""
    # Most pairs have disjoint bounding boxes; clipping is slow.
    if (a.min(0) >= b.max(0)).any() or (b.min(0) >= a.max(0)).any():
        return 0.0
    # In integers: coordinates are rounded to 1/4096 pixel.
    clipper = pyclipper.Pyclipper()
    clipper.AddPath(to_integers(a), pyclipper.PT_SUBJECT, True)
    clipper.AddPath(to_integers(b), pyclipper.PT_CLIP, True)
    parts = clipper.Execute(pyclipper.CT_INTERSECTION, pyclipper.PFT_NONZERO, pyclipper.PFT_NONZERO)
    return float(sum(pyclipper.Area(part) for part in parts)) / UNITS_PER_PIXEL**2


def to_integers(points: Points) -> list[list[int]]:
    """Return points in units of pyclipper."""
    rounded: list[list[int]] = (points.astype(np.float64) * UNITS_PER_PIXEL).round().astype(np.int64).tolist()
    return rounded
