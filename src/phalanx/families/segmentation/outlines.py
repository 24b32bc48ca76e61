"""Outlines of the regions of a class map."""

from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.data.image import LabelMap

TOLERANCE = 0.45  # pixels by which an outline may leave the edges: below a half, no centre of a pixel changes its side


class Region(NamedTuple):
    """Connected pixels of a class, without what they enclose."""

    label: int
    outline: npt.NDArray[np.float64]  # [N, 2] x, y; the first pixel lies between 0 and 1
    is_inside: bool  # no pixel at the border of the image


def find_regions(class_map: LabelMap) -> list[Region]:
    """Return the regions of a class map; painted in this order with their outlines filled, they are the map again.

    The larger ones come first: those that a region encloses, which fill its holes, come after it.
    """
    height, width = class_map.shape
    regions = []
    for label in np.unique(class_map).tolist():
        # Neighbours on four sides: regions that touch at corners cannot cross each other, so one encloses another or not.
        count, numbers, boxes, _ = cv2.connectedComponentsWithStats((class_map == label).astype(np.uint8), connectivity=4)
        for number in range(1, count):
            x, y, w, h = boxes[number, :4].tolist()
            part = (numbers[y : y + h, x : x + w] == number).astype(np.uint8)
            # OpenCV runs through the centres of pixels; through those of 2 x 2 for each, next to its edges.
            (contour,), _ = cv2.findContours(part.repeat(2, 0).repeat(2, 1), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
            edges = (contour + 1) // 2
            outline = cv2.approxPolyDP(edges, TOLERANCE, True).reshape(-1, 2) + np.array([x, y], np.float64)
            is_inside = x > 0 and y > 0 and x + w < width and y + h < height
            regions.append((cv2.contourArea(edges), Region(label, outline, is_inside)))
    return [region for _, region in sorted(regions, key=lambda pair: -pair[0])]
