"""Images to outlines of texts: the post-processing of DB.

Liao et al., Real-time Scene Text Detection with Differentiable Binarization, https://arxiv.org/abs/1911.08947; steps and
numbers are PaddleOCR's, so both find the same boxes on the same map. Shapes: h, w of the map, n points.
"""

from collections.abc import Mapping
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.runtime.family import Family
from phalanx.runtime.prepare import MAX_SIDE, Floats, Image, Size, limited_size, normalise, pad_to_multiple, resize, size_of
from phalanx.runtime.results import TextRegion
from phalanx.runtime.session import ArtifactError

Points = npt.NDArray[Any]  # [n, 2] x, y
Shape = Literal['quad', 'polygon']
Scoring = Literal['fast', 'slow']

LEAST_SIDE = 3  # minimum side of a text on the map, in pixels; two more after unclipping
ROUNDING = 0.002  # maximum distance of a polygon from the contour, relative to the contour's length


class TextDetection(Family):
    """Pre- and post-processing of a text detector."""

    def prepare(self, image: Image) -> Floats:
        for transform in self.preparation['transforms']:
            image = resize(image, *size_after(transform, image.shape[:2]))
        return normalise(pad_to_multiple(image, self.preparation['multiple_of']), self.preparation)

    def prediction(self, outputs: Mapping[str, Any], image: Image) -> list[TextRegion]:
        H, W = h, w = image.shape[:2]
        for transform in self.preparation['transforms']:
            h, w = size_after(transform, (h, w))  # part of the input that the image fills; the rest is black
        return text_regions(outputs['probabilities'][:h, :w], (W, H), **self.reading['post_processing'])


def size_after(transform: Mapping[str, Any], size: Size) -> Size:
    """Height and width of an image of `size` after a transform of the guide. Raises ArtifactError."""
    if transform['name'] == 'Resize':
        return size_of(transform, 'target_size')
    if transform['name'] == 'LimitSide':
        return limited_size(size, transform['side'], transform['limit'], transform.get('max_side', MAX_SIDE))
    raise ArtifactError(f'images went through {transform["name"]} in evaluation, which the runtime does not know')


def text_regions(
    probabilities: Floats,
    size: tuple[int, int],
    *,
    threshold: float,
    box_threshold: float,
    max_candidates: int,
    unclip_ratio: float,
    shape: Shape,
    scoring: Scoring,
    dilate: bool,
) -> list[TextRegion]:
    """Texts on a probability map [h, w] of an image of `size` (width, height), in whole pixels of the image.

    Each connected region above `threshold` is a text if its mean probability is at least `box_threshold`. The network was
    trained on shrunk texts, so outlines are moved outward by area * `unclip_ratio` / length. Quads are clockwise from the
    upper left.
    """
    above = (probabilities > threshold).astype(np.uint8)
    if dilate:
        above = cv2.dilate(above, np.ones((2, 2), np.uint8)).astype(np.uint8, copy=False)
    contours, _ = cv2.findContours(above, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    h, w = probabilities.shape
    map_size, image_size = np.array([w, h], np.float32), np.array(size, np.float32)
    regions = []
    for contour in contours[:max_candidates]:
        points = quad(contour, LEAST_SIDE) if shape == 'quad' else polygon(contour)
        if points is None:
            continue
        score = mean_within(probabilities, contour.reshape(-1, 2) if scoring == 'slow' else points)
        if score < box_threshold:
            continue
        # Only now: the score is that of the shrunk text, which the network was trained to predict.
        outer = merge_outlines(unclip(points, unclip_ratio), shape)
        if outer is not None:
            pixels = np.clip(np.round(outer / map_size * image_size), 0, image_size)  # float32 rounds halves as PaddleOCR
            regions.append(TextRegion(score, tuple((float(x), float(y)) for x, y in pixels)))
    return regions


def quad(contour: Points, least: float) -> Points | None:
    """Corners [4, 2] of the smallest rectangle around a contour; None if a side is shorter than `least`."""
    rectangle = cv2.minAreaRect(contour)
    if min(rectangle[1]) < least:
        return None
    # Order the corners: two on the left and two on the right, each pair from the top.
    corners = cv2.boxPoints(rectangle)
    corners = corners[np.argsort(corners[:, 0], kind='stable')]
    (a, b), (c, d) = corners[:2], corners[2:]
    left = (a, b) if b[1] > a[1] else (b, a)
    right = (c, d) if d[1] > c[1] else (d, c)
    return np.stack([left[0], right[0], right[1], left[1]])


def polygon(contour: Points) -> Points | None:
    """Simplified contour [n, 2]; None with fewer than four points. (Its width is checked after unclipping.)"""
    points = cv2.approxPolyDP(contour, ROUNDING * cv2.arcLength(contour, True), True).reshape(-1, 2)
    return points if len(points) >= 4 else None


def merge_outlines(paths: list[Points], shape: Shape) -> Points | None:
    """Merge the outlines from `unclip` into one; None if it is too small, or if a polygon fell apart."""
    if not paths or (shape == 'polygon' and len(paths) > 1):
        return None
    corners = quad(np.concatenate(paths).astype(np.int32), LEAST_SIDE + 2)
    return corners if corners is None or shape == 'quad' else paths[0]


def mean_within(probabilities: Floats, points: Points) -> float:
    """Mean of a map [h, w] over the pixels within an outline [n, 2]."""
    h, w = probabilities.shape
    low = np.clip(np.floor(points.min(0)).astype(int), 0, (w - 1, h - 1))
    high = np.clip(np.ceil(points.max(0)).astype(int), 0, (w - 1, h - 1))
    part = probabilities[low[1] : high[1] + 1, low[0] : high[0] + 1]
    inside = np.zeros(part.shape, np.uint8)
    cv2.fillPoly(inside, [(points - low.astype(points.dtype)).astype(np.int32)], 1)
    return float(cv2.mean(part, inside)[0])


def unclip(points: Points, ratio: float) -> list[Points]:
    """Move an outline [n, 2] outward by area * ratio / length, with rounded corners, in whole pixels."""
    area, length = area_and_length(points)
    return offset_outline(points, area * ratio / length if length else 0.0)


def offset_outline(points: Points, distance: float) -> list[Points]:
    """Move an outline [n, 2] outward, or inward by a negative `distance`; returns any number of outlines in whole pixels.

    Vatti, A generic solution to polygon clipping, Communications of the ACM 35(7), 1992; corners become round.
    """
    import pyclipper  # here: exported files of other families run without it

    mover = pyclipper.PyclipperOffset()
    try:
        mover.AddPath(points.astype(np.int64).tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    except pyclipper.ClipperException:  # no area
        return []
    return [np.array(path) for path in mover.Execute(distance)]


def area_and_length(points: Points) -> tuple[float, float]:
    """Area and length of a closed outline [n, 2], in pixels."""
    # Shoelace formula.
    closed = np.concatenate([points, points[:1]], dtype=np.float64)  # np.roll would take longer than the rest
    here, there = closed[:-1], closed[1:]
    area = abs(float((here[:, 0] * there[:, 1] - here[:, 1] * there[:, 0]).sum())) / 2
    return area, float(np.hypot(*(there - here).T).sum())
