"""Non-maximum suppression (NMS) per class."""

from dataclasses import dataclass

from torch import Tensor

from phalanx.config.options import check_probability


@dataclass(frozen=True, kw_only=True)
class Nms:
    """Settings of non-maximum suppression."""

    score_threshold: float = 0.01
    """Minimum score."""
    nms_threshold: float = 0.7
    """IoU above which the less probable of two boxes of one class is dropped."""
    pre_top_k: int = 1000
    """Maximum number of candidates per class."""
    keep_top_k: int = 300
    """Maximum number of results per image."""

    def __post_init__(self) -> None:
        for name in ('score_threshold', 'nms_threshold'):
            check_probability(name, getattr(self, name))
        for name in ('pre_top_k', 'keep_top_k'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} must be at least 1, got {getattr(self, name)}')


def multiclass_nms(boxes: Tensor, scores: Tensor, nms: Nms) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes [n, 4], scores [n] and classes [n] selected from `boxes` [A, 4] and `scores` [A, K], the most probable first.

    Candidates are the `pre_top_k` highest scores of each class above `score_threshold`. A candidate with an IoU above
    `nms_threshold` with a more probable one of its class is dropped; the `keep_top_k` best of the rest stay.
    """
    from torchvision.ops import batched_nms  # loading torchvision takes seconds that no other family should pay

    highest, anchors = scores.topk(min(nms.pre_top_k, len(scores)), dim=0)  # [k, K]
    # Candidates of all classes in one list: an anchor may be a candidate for several classes.
    above = highest > nms.score_threshold
    anchors, classes = anchors[above], above.nonzero()[:, 1]  # [candidates]
    candidates, probabilities = boxes[anchors], highest[above]
    # batched_nms keeps classes apart by adding multiples of the largest coordinate, which works for coordinates from 0 only;
    # float64 leaves the IoUs exact.
    apart = candidates.double() - (candidates.amin().double() if len(candidates) else 0)
    selected = batched_nms(apart, probabilities.double(), classes, nms.nms_threshold)[: nms.keep_top_k]
    return candidates[selected], probabilities[selected], classes[selected]
