"""Non-maximum suppression (NMS) per class."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Size, Tensor

from phalanx.config.options import check_probability
from phalanx.system.memory import AsyncCopy


@dataclass(frozen=True, kw_only=True)
class Nms:
    """Settings of non-maximum suppression."""

    score_threshold: float = 0.01
    """Minimum score."""
    nms_threshold: float = 0.7
    """IoU above which the less probable of two boxes of one class is dropped; 1: none is."""
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


NO_SUPPRESSION = Nms(score_threshold=0.0, nms_threshold=1.0)  # of detectors with queries: the 300 highest scores, as in DETR
MOST = 4096  # candidates per image that a device sends to the host at once: 256 KiB

Selected = tuple[Tensor, Tensor, Tensor]  # boxes [n, 4], scores [n], classes [n] of an image, by falling score


def multiclass_nms(boxes: Tensor, scores: Tensor, nms: Nms) -> list[Selected]:
    """Boxes selected per image by `begin_nms`, for which the host waits."""
    return begin_nms(boxes, scores, nms)()


def begin_nms(boxes: Tensor, scores: Tensor, nms: Nms) -> Callable[[], list[Selected]]:
    """Begin to select boxes per image from `boxes` [B, A, 4] and `scores` [B, A, K]; the result is on the host.

    Candidates are the `pre_top_k` highest scores of each class above `score_threshold`. A candidate with an IoU above
    `nms_threshold` with a more probable one of its class is dropped; the `keep_top_k` best of the rest stay. Of equal scores
    those of the lower class come first, then those of the lower anchor, so that the result is defined.
    """
    if nms.nms_threshold == 1 and nms.pre_top_k >= nms.keep_top_k:
        return begin_selection(boxes, scores, nms)
    fetch = begin_candidates(boxes, scores, nms)
    return lambda: suppress(fetch(), scores.shape, nms)


def suppress(candidates: tuple[Tensor, ...], shape: Size, nms: Nms) -> list[Selected]:
    """Suppress candidates, the result of `begin_candidates` for scores of `shape`."""
    from torchvision.ops import batched_nms  # loading torchvision takes seconds that no other family should pay

    boxes, probabilities, images, classes = candidates
    # By image, then by falling score, class and anchor.
    order = (images * shape[2] + classes).argsort(stable=True)
    order = order[probabilities[order].argsort(descending=True, stable=True)]
    order = order[images[order].argsort(stable=True)]
    boxes, probabilities, classes = boxes[order], probabilities[order], classes[order]
    counts = torch.bincount(images, minlength=shape[0]).tolist()
    selected = []
    for of_image in zip(
        torch.split(boxes, counts), torch.split(probabilities, counts), torch.split(classes, counts), strict=True
    ):
        own, likelihood, label = of_image
        # batched_nms keeps classes apart by adding multiples of the largest coordinate, which works for coordinates from 0
        # only; float64 leaves the IoUs exact.
        apart = own.double() - (own.amin().double() if len(own) else 0)
        kept, considered = own.new_empty(0, dtype=torch.long), 0
        # Only more probable boxes decide on a box: of the thousands of a network that has begun to learn, the first suffice.
        while len(kept) < nms.keep_top_k and considered < len(own):
            considered = max(2 * nms.keep_top_k, 4 * considered)
            first = slice(considered)
            kept = batched_nms(apart[first], likelihood[first].double(), label[first], nms.nms_threshold).sort().values
        kept = kept[: nms.keep_top_k]
        selected.append((own[kept], likelihood[kept], label[kept]))
    return selected


def begin_selection(boxes: Tensor, scores: Tensor, nms: Nms) -> Callable[[], list[Selected]]:
    """Begin to select the highest scores, without suppression."""
    anchors = scores.shape[1]
    # By class, then by anchor: the order of equal scores, which a stable sort keeps and `topk` does not. NaN is never chosen.
    of_classes = scores.transpose(1, 2).flatten(1).nan_to_num(nan=-1.0)
    count = min(nms.keep_top_k, of_classes.shape[1])
    places = mark_highest(of_classes, count).nonzero_static(size=count * len(scores))[:, 1].view(-1, count)
    highest, order = of_classes.gather(1, places).sort(dim=1, descending=True, stable=True)
    order = places.gather(1, order)[..., None]
    corners = boxes.gather(1, (order % anchors).expand(-1, -1, 4))
    rows = AsyncCopy(torch.cat([corners.double(), highest.double()[..., None], (order // anchors).double()], 2))  # exact

    def finish() -> list[Selected]:
        of_images = (image[image[:, 4] > nms.score_threshold] for image in rows.read())
        return [(image[:, :4].to(boxes.dtype), image[:, 4].to(scores.dtype), image[:, 5].long()) for image in of_images]

    return finish


def mark_highest(scores: Tensor, count: int) -> Tensor:
    """Mask of the `count` highest of each row of `scores` [R, n]; of equal ones the first."""
    lowest = scores.topk(count, dim=1).values[:, -1:]
    higher, equal = scores > lowest, scores == lowest
    return higher | (equal & (equal.cumsum(1) <= count - higher.sum(1, keepdim=True)))


def begin_candidates(boxes: Tensor, scores: Tensor, nms: Nms) -> Callable[[], tuple[Tensor, ...]]:
    """Begin to copy boxes [n, 4], scores [n], images and classes [n] of all candidates to the host.

    They are in the order of images, anchors and classes. Suppression on a device would make the host wait for the number of
    boxes that stay, once per image.
    """
    if scores.device.type == 'cpu':
        return lambda: gather_candidates(boxes, scores, nms)
    # A place for each of the first candidates, and their number: the host needs to know no sizes before it copies.
    most = min(MOST * len(scores), scores.numel())
    above = scores > nms.score_threshold
    images, anchors, classes = torch.nonzero_static(above, size=most, fill_value=0).unbind(1)
    places = torch.stack([images, anchors, classes], 1).double()  # exact, as are float32 boxes and scores
    rows = torch.cat([boxes[images, anchors].double(), scores[images, anchors, classes, None].double(), places], 1)
    copy = AsyncCopy(torch.cat([rows, above.sum().double().expand(1, 8)]))

    def finish() -> tuple[Tensor, ...]:
        rows = copy.read()
        count = int(rows[-1, 0])
        rows = rows[:-1][:count]
        images, _, classes = rows[:, 5:].long().unbind(1)
        is_crowded = len(rows) and torch.bincount(images * scores.shape[2] + classes).max() > nms.pre_top_k
        if count <= most and not is_crowded:
            return rows[:, :4].to(boxes.dtype), rows[:, 4].to(scores.dtype), images, classes
        # More than that are candidates of an untrained network; all its scores follow.
        return gather_candidates(boxes.cpu(), scores.cpu(), nms)

    return finish


def gather_candidates(boxes: Tensor, scores: Tensor, nms: Nms) -> tuple[Tensor, ...]:
    """Boxes [n, 4], scores [n], images and classes [n] of `select_candidates`."""
    images, anchors, classes = select_candidates(scores, nms).unbind(1)
    return boxes[images, anchors], scores[images, anchors, classes], images, classes


def select_candidates(scores: Tensor, nms: Nms) -> Tensor:
    """Image, anchor and class [n, 3] of the `pre_top_k` highest of `scores` [B, A, K] above the threshold, per class.

    Of equal scores those of lower anchors are selected. Few scores of a trained network are above the threshold: only classes
    with more than `pre_top_k` of them are sorted, which takes ten times as long as all else.
    """
    K = scores.shape[2]
    # Anchors first: `nonzero` over all classes would take longer than all else.
    images, anchors = (scores.amax(2) > nms.score_threshold).nonzero().unbind(1)
    rows, classes = (scores[images, anchors] > nms.score_threshold).nonzero().unbind(1)
    places = torch.stack([images[rows], anchors[rows], classes], 1)
    crowded = torch.bincount(places[:, 0] * K + classes, minlength=len(scores) * K) > nms.pre_top_k
    if not crowded.any():
        return places
    crowded = crowded.view(len(scores), K)
    above = scores > nms.score_threshold
    above.transpose(1, 2)[crowded] = mark_highest(scores.transpose(1, 2)[crowded], nms.pre_top_k)  # [crowded classes, A]
    return above.nonzero()
