"""Losses of detectors with queries: RT-DETR and D-FINE.

Each layer of the decoder, the encoder's selection and the denoising queries are compared with the true boxes. Shapes: B batch,
Q queries, K classes, S sets of predictions, n pairs of a query and a true box.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.data.boxes import generalised_iou, iou
from phalanx.families.detection.loss.assign import Truths
from phalanx.families.detection.loss.assigners import Assigner, check_at_least
from phalanx.families.detection.loss.hungarian import Hungarian, Matching, Pairs
from phalanx.families.detection.loss.terms import DetectionLoss
from phalanx.families.detection.queries import Decoded, Queries, QueryRaw, centres, corners
from phalanx.families.task import Loss, Term
from phalanx.nn.precision import at_least_float32

TEMPERATURE = 5.0  # of the distributions in the self-distillation


class Matched(NamedTuple):
    """Pairs of several sets of predictions (layers, encoder), one set after the other; n: pairs of all sets.

    They are joined because a step has a hundred pairs: calling an operation for each set takes longer than computing it.
    """

    at: tuple[Tensor, Tensor, Tensor]  # [n] row and query of each pair in [S * B, Q], and the class of its true box
    boxes: Tensor  # [n, 4] predicted, centre and size from 0 to 1; at least float32, like all that follow
    pixels: Tensor  # [n, 4] their corners
    true_boxes: Tensor  # [n, 4]
    true_pixels: Tensor  # [n, 4]
    overlaps: Tensor  # [n] IoU, without a gradient


@dataclass(frozen=True, kw_only=True)
class RTDETRLoss(DetectionLoss):
    """Terms `cls`, `l1` and `giou` of all layers and of the encoder, and `denoising`, divided by the true boxes of the step.

    Classes: varifocal loss (VFL), whose target is the IoU, or the matchability-aware loss (MAL) of DEIM
    (https://arxiv.org/abs/2412.04234), whose target is the IoU to the power of `gamma`. `matcher_change_epoch`: first epoch of
    the cost of DEIMv2, see `Hungarian`; null: never. Raises ValueError for negative numbers.
    """

    pads_truths: ClassVar[bool] = True

    classes: Literal['varifocal', 'matchability'] = 'varifocal'
    class_weight: float = 1.0
    l1_weight: float = 5.0
    giou_weight: float = 2.0
    alpha: float = 0.75  # weight of background; 1 for matchability in DEIM
    gamma: float = 2.0  # 1.5 for matchability in DEIM
    matcher_change_epoch: int | None = None

    def __post_init__(self) -> None:
        check_at_least(self, 0, 'class_weight', 'l1_weight', 'giou_weight', 'alpha', 'gamma')

    @property
    def assigner(self) -> Assigner:
        return Hungarian(change_epoch=self.matcher_change_epoch)  # type: ignore[return-value]  # the assignment of another kind of output

    def weights(self, boxes: Sequence[Tensor], classes: Sequence[Tensor]) -> Mapping[str, Tensor] | None:
        count = torch.full((), float(sum(len(of_image) for of_image in boxes)), device=boxes[0].device)
        return dict.fromkeys(('cls', 'l1', 'giou', 'denoising'), count)

    def __call__(self, raw: Any, truths: Truths, assigned: Any) -> Loss:
        matching: Matching = assigned
        sets, noisy = raw.sets, [match_denoising(each, matching, truths, raw.size) for each in raw.denoising]
        matched = match(sets, matching.sets, truths, raw.size)
        l1, giou = self.box_totals(matched).unbind()
        return {
            'cls': Term(self.class_total(sets, matched), matching.boxes, least=1.0),
            'l1': Term(l1, matching.boxes, least=1.0),
            'giou': Term(giou, matching.boxes, least=1.0),
            'denoising': Term(self.denoising_total(raw, noisy, matching), matching.boxes),
        }

    def denoising_total(self, raw: QueryRaw, noisy: Sequence[Matched], matching: Matching) -> Tensor:
        """Sum over all layers and groups, divided by the groups; 0 without denoising."""
        total = raw.decoded.layers[-1].boxes.new_zeros(())
        for decoded, matched in zip(raw.denoising, noisy, strict=True):
            total = total + (self.class_total(decoded.sets, matched) + self.box_totals(matched).sum()) / matching.groups
        return total

    def class_total(self, sets: Sequence[Queries], matched: Matched) -> Tensor:
        """Weighted cross-entropy [] of all queries; the target of a matched one is its IoU, of its class."""
        logits = at_least_float32(torch.cat([queries.logits for queries in sets]))
        target = matched.overlaps.to(logits.dtype)
        if self.classes == 'matchability':
            target = target**self.gamma
        targets = torch.zeros_like(logits).index_put_(matched.at, target)
        weights = (self.alpha * logits.detach().sigmoid() ** self.gamma).index_put_(
            matched.at, target if self.classes == 'varifocal' else torch.ones_like(target)
        )
        return self.class_weight * F.binary_cross_entropy_with_logits(logits, targets, weights, reduction='sum')

    def box_totals(self, matched: Matched) -> Tensor:
        """L1 distance and 1 - GIoU of the pairs, summed: [2]."""
        l1, giou = (matched.boxes - matched.true_boxes).abs().sum(), generalised_iou(matched.pixels, matched.true_pixels)
        return torch.stack([self.l1_weight * l1, self.giou_weight * (1 - giou).sum()])


@dataclass(frozen=True, kw_only=True)
class DFINELoss(RTDETRLoss):
    """Terms of RT-DETR, and `fgl` and `ddf` of the distributions of distances (fine-grained localisation, self-distillation).

    Boxes and distances of all layers are compared with the union of their matchings, and divided by its size over the step.
    """

    fgl_weight: float = 0.15
    ddf_weight: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, 'fgl_weight', 'ddf_weight')

    @property
    def sees_whole_step(self) -> bool:
        return True  # the size of the union follows from the outputs

    def weights(self, boxes: Sequence[Tensor], classes: Sequence[Tensor]) -> Mapping[str, Tensor] | None:
        return None

    def __call__(self, raw: Any, truths: Truths, assigned: Any) -> Loss:
        matching: Matching = assigned
        sets, noisy = raw.sets, [match_denoising(each, matching, truths, raw.size) for each in raw.denoising]
        # Classes by the matching of each set, boxes by the union of all.
        own = match(sets, matching.sets, truths, raw.size)
        union = match(sets, [matching.union] * len(sets), truths, raw.size)
        l1, giou = self.box_totals(union).unbind()
        fgl = self.fgl_total(raw.decoded, matching.union, union)
        denoising = self.denoising_total(raw, noisy, matching)
        for decoded, matched in zip(raw.denoising, noisy, strict=True):
            denoising = denoising + self.fgl_total(decoded, matching.denoising, matched) / matching.groups
        return {
            'cls': Term(self.class_total(sets, own), matching.boxes, least=1.0),
            'l1': Term(l1, matching.of_union, least=1.0),
            'giou': Term(giou, matching.of_union, least=1.0),
            'fgl': Term(fgl, matching.of_union, least=1.0),
            'ddf': self.ddf_term(raw, matching, union, noisy),
            'denoising': Term(denoising, matching.boxes),
        }

    def fgl_total(self, decoded: Decoded, pairs: Pairs, matched: Matched) -> Tensor:
        """Cross-entropy [] with the two bins beside each true distance, weighted by the IoU of the layer.

        `matched` begins with the layers, of which each has the `pairs`. Shapes: L layers, n pairs of one.
        """
        if not decoded.distances:
            return decoded.layers[-1].boxes.new_zeros(())
        # Targets have no gradient, not even where micro-batches join outputs as leaves.
        bins, n = decoded.bins[0][0].detach(), len(pairs.query)
        left, right_share = beside(true_distances(decoded, pairs, matched.true_boxes[:n]), bins)
        logits = torch.stack([by_side(each)[pairs.image, pairs.query] for each in decoded.distances])  # [L, n, 4, bins]
        shares = logits.log_softmax(-1)
        places = (place.expand(len(shares), -1, -1)[..., None] for place in (left, left + 1))
        low, high = (shares.gather(3, place)[..., 0] for place in places)
        losses = ((1 - right_share) * low + right_share * high).sum(2)  # [L, n]
        return -self.fgl_weight * (losses * of_layers(matched, len(shares), n)).sum()

    def ddf_term(self, raw: QueryRaw, matching: Matching, union: Matched, noisy: Sequence[Matched]) -> Term:
        """Decoupled distillation focal loss: the last layer teaches the distributions of the others.

        Matched queries and the others are averaged apart, over the whole step, then weighted by the roots of their numbers.
        """
        samples, queries = matching.samples, raw.decoded.layers[-1].logits.shape[1]
        counts = matched, others = matching.all_of_union, samples * queries - matching.all_of_union
        shares = [count.sqrt() / (matched.sqrt() + others.sqrt()) for count in counts]
        total = self.ddf_total(raw.decoded, matching.union, union, shares, counts)
        for decoded, of_denoising in zip(raw.denoising, noisy, strict=True):
            positive = matching.all_boxes * matching.groups
            of_noise = positive, samples * decoded.layers[-1].logits.shape[1] - positive
            own = self.ddf_total(decoded, matching.denoising, of_denoising, shares, of_noise)
            total = total + own * (positive > 0)
        weight = total.new_full((), float(len(raw.size)))
        return Term(self.ddf_weight * samples * total, weight)

    def ddf_total(
        self, decoded: Decoded, pairs: Pairs, matched: Matched, shares: Sequence[Tensor], counts: Sequence[Tensor]
    ) -> Tensor:
        """Sum over layers; `shares` [] and `counts` [] are of matched and of other queries in the whole step."""
        students = len(decoded.distances) - 1
        if students < 1:
            return decoded.layers[-1].boxes.new_zeros(())
        factors = [share / (4 * count.clamp(min=1)) for share, count in zip(shares, counts, strict=True)]
        teacher = (by_side(decoded.distances[-1].detach()) / TEMPERATURE).log_softmax(-1)
        certainty = at_least_float32(decoded.layers[-1].logits.detach()).sigmoid().amax(-1)  # [B, Q]
        n, dtype = len(pairs.query), certainty.dtype
        factor = factors[1].to(dtype).repeat(certainty.shape).index_put(pairs[:2], factors[0].to(dtype).expand(n))
        weights = certainty.repeat(students, 1, 1)
        weights[:, pairs.image, pairs.query] = of_layers(matched, students, n).to(dtype)
        student = (by_side(torch.stack(decoded.distances[:-1])) / TEMPERATURE).log_softmax(-1)
        divergence = (teacher.exp() * (teacher - student)).sum((-1, -2))  # [students, B, Q]
        return TEMPERATURE**2 * (factor * weights * divergence).sum()


def match(sets: Sequence[Queries], pairs: Sequence[Pairs], truths: Truths, size: Tensor) -> Matched:
    """Join the pairs of each set of predictions with their true boxes."""
    image, query, truth = (torch.cat(part) for part in zip(*pairs, strict=True))
    row = torch.cat([each.image + number * len(size) for number, each in enumerate(pairs)])
    boxes = at_least_float32(torch.cat([queries.boxes for queries in sets]))[row, query]
    true = at_least_float32(truths.boxes)[image, truth]
    sides = size[image].repeat(1, 2).to(true.dtype)
    pixels, at = corners(boxes) * sides, (row, query, truths.classes[image, truth])
    return Matched(at, boxes, pixels, centres(true / sides), true, iou(pixels.detach(), true))


def match_denoising(decoded: Decoded, matching: Matching, truths: Truths, size: Tensor) -> Matched:
    return match(decoded.sets, [matching.denoising] * len(decoded.sets), truths, size)


def of_layers(matched: Matched, layers: int, n: int) -> Tensor:
    """IoU [layers, n] of the first layers, which have `n` pairs each."""
    return matched.overlaps[: layers * n].view(layers, n)


def by_side(distances: Tensor) -> Tensor:
    """Logits [..., 4, bins] of the distances of each side."""
    return at_least_float32(distances).view(*distances.shape[:-1], 4, -1)


def true_distances(decoded: Decoded, pairs: Pairs, true: Tensor) -> Tensor:
    """Distances [n, 4] of the sides of the true boxes [n, 4] from those of the reference boxes, in the units of the bins."""
    references = at_least_float32(decoded.references[0].detach())[pairs.image, pairs.query]
    scale, (points, sides) = decoded.bins[0][0, -1].detach(), references.chunk(2, -1)
    low, high = points - (true[:, :2] - true[:, 2:] / 2), (true[:, :2] + true[:, 2:] / 2) - points
    return torch.cat([low, high], 1) / (sides / scale + 1e-16).repeat(1, 2) - 0.5 * scale


def beside(distances: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """The bin before each distance, and the share of the one behind it, which is nearer the larger the share; both limited."""
    left = (torch.searchsorted(bins, distances.contiguous(), right=True) - 1).clamp(0, len(bins) - 2)
    low, high = bins[left], bins[left + 1]
    return left, ((distances - low) / (high - low)).clamp(0, 1)
