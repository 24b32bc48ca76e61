"""Boxes: float [..., 4], (x0, y0, x1, y1) in pixels, x1 and y1 exclusive. Shapes: N, M boxes."""

import torch
from torch import Tensor

EPSILON = 1e-9  # added to areas that divide: two boxes without area overlap by 0, not by 0/0


def area(boxes: Tensor) -> Tensor:  # [..., 4] -> [...]
    """Area of each box; 0 if it ends before it starts."""
    x0, y0, x1, y1 = boxes.unbind(-1)
    return (x1 - x0).clamp(min=0) * (y1 - y0).clamp(min=0)


def iou(a: Tensor, b: Tensor) -> Tensor:  # [..., 4] and [..., 4] -> [...]
    """Intersection over union of each box of `a` with the box of `b` at the same index, in [0, 1]."""
    overlap = _overlap(a, b)
    return overlap / (area(a) + area(b) - overlap + EPSILON)


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:  # [..., N, 4] and [..., M, 4] -> [..., N, M]
    """Intersection over union of each box of `a` with each of `b`, in [0, 1]."""
    return iou(a.unsqueeze(-2), b.unsqueeze(-3))


def generalised_iou(a: Tensor, b: Tensor) -> Tensor:  # [..., 4] and [..., 4] -> [...]
    """IoU less the share of the smallest box around both that neither covers, in (-1, 1].

    It has a gradient where boxes do not overlap, too. Rezatofighi et al., https://arxiv.org/abs/1902.09630.
    """
    overlap = _overlap(a, b)
    union = area(a) + area(b) - overlap + EPSILON
    around = area(torch.cat([torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])], -1)) + EPSILON
    return overlap / union - (around - union) / around


def _overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection area. One coordinate at a time, so that no tensor of all pairs has a last axis of 2 or 4."""
    (ax0, ay0, ax1, ay1), (bx0, by0, bx1, by1) = a.unbind(-1), b.unbind(-1)
    width = (torch.minimum(ax1, bx1) - torch.maximum(ax0, bx0)).clamp(min=0)
    height = (torch.minimum(ay1, by1) - torch.maximum(ay0, by0)).clamp(min=0)
    return width * height


def from_distances(points: Tensor, distances: Tensor) -> Tensor:  # [..., 2] and [..., 4] -> [..., 4]
    """Boxes from the distances of their left, top, right and bottom sides to `points`."""
    return torch.cat([points - distances[..., :2], points + distances[..., 2:]], -1)


def to_distances(points: Tensor, boxes: Tensor) -> Tensor:  # [..., 2] and [..., 4] -> [..., 4]
    """Distances of the left, top, right and bottom sides of `boxes` from `points`; negative for a point beyond the side."""
    return torch.cat([points - boxes[..., :2], boxes[..., 2:] - points], -1)


def contains(boxes: Tensor, points: Tensor) -> Tensor:  # [..., 4] and [..., 2] -> bool [...]
    """True where a box contains the point of the same index; a point on its border is outside."""
    (x0, y0, x1, y1), (x, y) = boxes.unbind(-1), points.unbind(-1)
    return (x - x0 > EPSILON) & (y - y0 > EPSILON) & (x1 - x > EPSILON) & (y1 - y > EPSILON)
