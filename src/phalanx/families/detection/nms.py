"""Non-maximum suppression: of boxes that overlap much and have one class, the most probable one stays."""

from torch import Tensor


def multiclass_nms(
    boxes: Tensor,
    scores: Tensor,
    *,
    score_threshold: float = 0.01,
    nms_threshold: float = 0.7,
    pre_top_k: int = 1000,
    keep_top_k: int = 300,
) -> tuple[Tensor, Tensor, Tensor]:
    """The boxes [n, 4] found among `boxes` [A, 4], their scores [n] and classes [n], the most probable first.

    Each of `scores` [A, K] above `score_threshold` makes a candidate, but at most the `pre_top_k` highest of each class. One
    that overlaps a more probable candidate of its class by an IoU above `nms_threshold` is left out; `keep_top_k` of the rest
    stay.
    """
    from torchvision.ops import batched_nms  # loading torchvision takes seconds that no other family should pay

    highest, anchors = scores.topk(min(pre_top_k, len(scores)), dim=0)  # [k, K]
    above = highest > score_threshold
    anchors, classes = anchors[above], above.nonzero()[:, 1]  # [candidates]
    candidates, probabilities = boxes[anchors], highest[above]
    # batched_nms may move classes apart by adding to coordinates: none is negative, so they stay apart, and float64 stays exact
    apart = candidates.double() - (candidates.amin().double() if len(candidates) else 0)
    kept = batched_nms(apart, probabilities.double(), classes, nms_threshold)[:keep_top_k]
    return candidates[kept], probabilities[kept], classes[kept]
