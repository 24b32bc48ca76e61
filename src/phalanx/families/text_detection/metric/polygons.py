"""How much two outlines overlap. Shapes: n points."""

import numpy as np
import pyclipper

from phalanx.families.text_detection.data.source import Points
from phalanx.runtime.text_detection import area_and_length

FINENESS = 2**12  # the clipper reckons in whole numbers, of which a pixel has so many


def is_simple(points: Points) -> bool:
    """Whether an outline has an area and does not cross itself."""
    parts = pyclipper.SimplifyPolygon(whole(points), pyclipper.PFT_EVENODD)
    area = area_and_length(points)[0]
    return len(parts) == 1 and area > 0 and abs(abs(pyclipper.Area(parts[0])) / FINENESS**2 - area) < 1e-2 * max(1.0, area)


def overlap(a: Points, b: Points) -> float:
    """The area that two simple outlines have in common, in pixels."""
    if (a.min(0) >= b.max(0)).any() or (b.min(0) >= a.max(0)).any():
        return 0.0
    clipper = pyclipper.Pyclipper()
    clipper.AddPath(whole(a), pyclipper.PT_SUBJECT, True)
    clipper.AddPath(whole(b), pyclipper.PT_CLIP, True)
    parts = clipper.Execute(pyclipper.CT_INTERSECTION, pyclipper.PFT_NONZERO, pyclipper.PFT_NONZERO)
    return float(sum(pyclipper.Area(part) for part in parts)) / FINENESS**2


def whole(points: Points) -> list[list[int]]:
    rounded: list[list[int]] = (points.astype(np.float64) * FINENESS).round().astype(np.int64).tolist()
    return rounded
