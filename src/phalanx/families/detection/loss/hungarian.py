"""Hungarian matching: at most one query for each true box, of the lowest total cost.

Carion et al., DETR, https://arxiv.org/abs/2005.12872; costs as in RT-DETR. Shapes: B batch, Q queries, N true boxes per image
(padded), K classes, S sets of predictions (layers, encoder, initial boxes), n pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phalanx.data.boxes import generalised_iou, iou
from phalanx.families.detection.loss.assign import Truths
from phalanx.families.detection.loss.assigners import check_at_least
from phalanx.families.detection.queries import Queries, QueryRaw, centres, in_pixels
from phalanx.nn.precision import at_least_float32
from phalanx.parallel.step import WholeStep
from phalanx.system.memory import to_device

Indices = npt.NDArray[np.int64]


class Pairs(NamedTuple):
    """Matched queries and true boxes, int64 [n] each."""

    image: Tensor
    query: Tensor
    truth: Tensor


@dataclass(frozen=True)
class Matching:
    """Pairs of each set of predictions of a batch, and the counts that losses divide by."""

    sets: tuple[Pairs, ...]  # of the layers, the encoder's selection and the initial boxes
    union: Pairs  # of all sets together: for each query the true box that most of them agree on
    denoising: Pairs  # positive queries; none without denoising
    groups: int  # of denoising queries
    boxes: Tensor  # [] true boxes of this batch
    of_union: Tensor  # [] pairs in `union` of this batch
    # The same over all ranks, and their samples:
    all_boxes: Tensor
    all_of_union: Tensor
    samples: int


@dataclass(frozen=True, kw_only=True)
class Hungarian:
    """Hungarian matching, with scipy. Raises ValueError for weights below 0, and without scipy.

    From `change_epoch` on, the cost is that of DEIMv2: -p * IoU ** `iou_exponent`, of the probability p of the class.
    """

    class_weight: float = 2.0
    """Weight of the class in the cost."""
    l1_weight: float = 5.0
    """Weight of the distance of the boxes, as shares of the image."""
    giou_weight: float = 2.0
    """Weight of the GIoU."""
    alpha: float = 0.25
    """Focal cost of the class: weight of the probability, against that of background."""
    gamma: float = 2.0
    """Focal cost of the class: exponent."""
    change_epoch: int | None = None
    iou_exponent: float = 4.0

    def __post_init__(self) -> None:
        check_at_least(self, 0, 'class_weight', 'l1_weight', 'giou_weight', 'alpha', 'gamma', 'iou_exponent')
        if find_spec('scipy') is None:
            raise ValueError('Hungarian matching needs scipy: pip install "phalanx-vision[detr]"')

    @torch.no_grad()
    def __call__(self, raw: Any, truths: Truths, whole: WholeStep) -> Matching:
        """Match all sets of predictions of a batch. The only wait for the device in a step is the copy of the costs."""
        has_changed = self.change_epoch is not None and whole.epoch >= self.change_epoch
        cost = self.quality_cost if has_changed else self.cost
        costs = cost(Queries(*map(torch.stack, zip(*raw.sets, strict=True))), truths, raw.size)  # [S, B, Q, N]
        # Padding is marked in the costs: true boxes are counted on the host without another copy.
        table = costs.masked_fill(~truths.exist[:, None], torch.nan).cpu().numpy()
        counts = (~np.isnan(table[0, :, 0])).sum(1)
        matched = [[assign(image[:, :count]) for image, count in zip(of_set, counts, strict=True)] for of_set in table]
        union = [agree([of_set[place] for of_set in matched], truths.boxes.shape[1]) for place in range(len(counts))]
        groups, noisy = positives(raw, truths, counts)
        *of_sets, of_union, of_noise = send([*matched, union, noisy], truths.boxes.device)
        numbers = to_device(torch.tensor([counts.sum(), len(of_union.query)], dtype=torch.float64), truths.boxes.device)
        sums = whole.sum(numbers)
        return Matching(
            tuple(of_sets),
            of_union,
            of_noise,
            groups,
            boxes=numbers[0],
            of_union=numbers[1],
            all_boxes=sums[0],
            all_of_union=sums[1],
            samples=whole.count(len(counts)),
        )

    def cost(self, queries: Queries, truths: Truths, size: Tensor) -> Tensor:
        """Cost [S, B, Q, N] of each pair, at least float32."""
        boxes, p = boxes_and_probabilities(queries, truths)
        # Focal cost: of calling this query the class, less that of calling it background.
        as_class = -self.alpha * (1 - p) ** self.gamma * (p + 1e-8).log()
        as_background = -(1 - self.alpha) * p**self.gamma * (1 - p + 1e-8).log()
        true = truths.boxes.to(boxes.dtype)
        l1 = torch.cdist(boxes, centres(true / size.repeat(1, 2)[:, None].to(boxes.dtype)), p=1)
        giou = generalised_iou(in_pixels(boxes, size)[..., None, :], true[:, None])
        cost = self.class_weight * (as_class - as_background) + self.l1_weight * l1 - self.giou_weight * giou
        # A network that diverged still gets some assignment, and a loss that shows it.
        return cost.nan_to_num(nan=1.0)

    def quality_cost(self, queries: Queries, truths: Truths, size: Tensor) -> Tensor:
        """Cost [S, B, Q, N] of each pair, by the quality that task-aligned assignment has."""
        boxes, p = boxes_and_probabilities(queries, truths)
        overlap = iou(in_pixels(boxes, size)[..., None, :], truths.boxes.to(boxes.dtype)[:, None])
        return (-p * overlap**self.iou_exponent).nan_to_num(nan=1.0)


def boxes_and_probabilities(queries: Queries, truths: Truths) -> tuple[Tensor, Tensor]:
    """Boxes [S, B, Q, 4], at least float32, and probabilities [S, B, Q, N] of the class of each true box."""
    of_truths = queries.logits.gather(3, truths.classes[:, None].expand(*queries.logits.shape[:3], -1))
    boxes = at_least_float32(queries.boxes)
    return boxes, of_truths.to(boxes.dtype).sigmoid()


def assign(costs: npt.NDArray[np.float32]) -> Indices:
    """Queries and true boxes, int64 [2, min(Q, N)], of the lowest total of `costs` [Q, N]."""
    from scipy.optimize import linear_sum_assignment  # loading it takes a second that no other loss should pay

    return np.stack(linear_sum_assignment(costs)).astype(np.int64)


def agree(matched: Sequence[Indices], most: int) -> Indices:
    """Pairs [2, n] of all sets of an image, one per query: the most frequent, then the lowest true box.

    It is the globally optimal localisation set of D-FINE. `most`: upper bound of true boxes.
    """
    codes, counts = np.unique(np.concatenate([query * most + truth for query, truth in matched]), return_counts=True)
    ranked = codes[np.argsort(-counts, kind='stable')]
    _, first = np.unique(ranked // most, return_index=True)
    return np.stack([ranked[first] // most, ranked[first] % most])


def positives(raw: QueryRaw, truths: Truths, counts: npt.NDArray[np.int64]) -> tuple[int, list[Indices]]:
    """Groups of denoising queries, and their positive queries with their true boxes [2, n] of each image."""
    if not raw.denoising:
        return 0, [np.zeros((2, 0), np.int64) for _ in counts]
    N = truths.boxes.shape[1]
    groups = raw.denoising[0].layers[0].boxes.shape[1] // (2 * N)
    firsts = 2 * N * np.arange(groups)[:, None]
    pairs = []
    for count in counts:
        numbers = np.broadcast_to(np.arange(count), (groups, count))
        pairs.append(np.stack([(firsts + numbers).ravel(), numbers.ravel()]))
    return groups, pairs


def send(sets: Sequence[Sequence[Indices]], device: torch.device) -> list[Pairs]:
    """Pairs of each set, of the pairs [2, n] of each of its images: one copy to the device for all."""
    rows = [
        np.concatenate([np.stack([np.full(pairs.shape[1], image), *pairs]) for image, pairs in enumerate(of_set)], 1)
        for of_set in sets
    ]
    together = to_device(torch.from_numpy(np.concatenate(rows, 1)), device)
    return [Pairs(*part.unbind()) for part in torch.split(together, [part.shape[1] for part in rows], 1)]
