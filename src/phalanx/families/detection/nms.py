"""Non-maximum suppression: of boxes that overlap much and have one class, the most probable one stays."""

from dataclasses import dataclass

from torch import Tensor

from phalanx.config.options import check_probability


@dataclass(frozen=True, kw_only=True)
class Nms:
    """Non-maximum suppression: which of the boxes that a network gives are results."""

    score_threshold: float = 0.01
    """What is less probable is not a result."""
    nms_threshold: float = 0.7
    """Boxes of one class that overlap by more than this IoU are one."""
    pre_top_k: int = 1000
    """How many of the most probable boxes of each class are looked at."""
    keep_top_k: int = 300
    """How many results an image has at most."""

    def __post_init__(self) -> None:
        for name in ('score_threshold', 'nms_threshold'):
            check_probability(name, getattr(self, name))
        for name in ('pre_top_k', 'keep_top_k'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} must be at least 1, got {getattr(self, name)}')


def multiclass_nms(boxes: Tensor, scores: Tensor, nms: Nms) -> tuple[Tensor, Tensor, Tensor]:
    """The boxes [n, 4] found among `boxes` [A, 4], their scores [n] and classes [n], the most probable first.

    Each of `scores` [A, K] above `score_threshold` makes a candidate, but at most the `pre_top_k` highest of each class. One
    that overlaps a more probable candidate of its class by an IoU above `nms_threshold` is left out; `keep_top_k` of the rest
    stay.
    """
    from torchvision.ops import batched_nms  # loading torchvision takes seconds that no other family should pay

    highest, anchors = scores.topk(min(nms.pre_top_k, len(scores)), dim=0)  # [k, K]
    above = highest > nms.score_threshold
    anchors, classes = anchors[above], above.nonzero()[:, 1]  # [candidates]
    candidates, probabilities = boxes[anchors], highest[above]
    # batched_nms may move classes apart by adding to coordinates: none is negative, so they stay apart, and float64 stays exact
    apart = candidates.double() - (candidates.amin().double() if len(candidates) else 0)
    kept = batched_nms(apart, probabilities.double(), classes, nms.nms_threshold)[: nms.keep_top_k]
    return candidates[kept], probabilities[kept], classes[kept]
