"""Losses of detectors with queries: RT-DETR and D-FINE.

Each layer of the decoder, the encoder's selection and the denoising queries are compared with the true boxes. Shapes: B batch,
Q queries, K classes, n pairs of a query and a true box.
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
from phalanx.families.detection.queries import Decoded, Queries, QueryRaw, centres, in_pixels
from phalanx.families.task import Loss, Term
from phalanx.nn.precision import at_least_float32

TEMPERATURE = 5.0  # of the distributions in the self-distillation


class Boxes(NamedTuple):
    """True boxes of pairs, [n, 4] each."""

    shares: Tensor  # centre and size, from 0 to 1
    pixels: Tensor  # corners


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
        decoded: Decoded = raw.decoded
        all_pairs = [*matching.layers, *matching.selection, *matching.initial]
        sets = list(zip((*decoded.layers, *raw.selection, *decoded.initial), all_pairs, strict=True))
        cls = torch.stack([self.class_total(queries, pairs, truths, raw.size) for queries, pairs in sets]).sum()
        totals = [self.box_totals(queries, pairs, truths, raw.size) for queries, pairs in sets]
        l1, giou = torch.stack(totals).sum(0).unbind()
        return {
            'cls': Term(cls, matching.boxes, least=1.0),
            'l1': Term(l1, matching.boxes, least=1.0),
            'giou': Term(giou, matching.boxes, least=1.0),
            'denoising': Term(self.denoising_total(raw, truths, matching), matching.boxes),
        }

    def denoising_total(self, raw: QueryRaw, truths: Truths, matching: Matching) -> Tensor:
        """Sum over all layers and groups, divided by the groups; 0 without denoising."""
        total = raw.decoded.layers[-1].boxes.new_zeros(())
        for decoded in raw.denoising:
            for queries in (*decoded.layers, *decoded.initial):
                total = total + self.class_total(queries, matching.denoising, truths, raw.size)
                total = total + self.box_totals(queries, matching.denoising, truths, raw.size).sum()
        return total / max(matching.groups, 1)

    def class_total(self, queries: Queries, pairs: Pairs, truths: Truths, size: Tensor) -> Tensor:
        """Weighted cross-entropy [] of all queries; the target of a matched one is its IoU, of its class."""
        logits = at_least_float32(queries.logits)
        at = pairs.image, pairs.query, truths.classes[pairs.image, pairs.truth]
        target = overlaps(queries, pairs, truths, size).to(logits.dtype)
        if self.classes == 'matchability':
            target = target**self.gamma
        targets = torch.zeros_like(logits).index_put_(at, target)
        weights = (self.alpha * logits.detach().sigmoid() ** self.gamma).index_put_(
            at, target if self.classes == 'varifocal' else torch.ones_like(target)
        )
        return self.class_weight * F.binary_cross_entropy_with_logits(logits, targets, weights, reduction='sum')

    def box_totals(self, queries: Queries, pairs: Pairs, truths: Truths, size: Tensor) -> Tensor:
        """L1 distance and 1 - GIoU of the pairs, summed: [2]."""
        true = true_boxes(pairs, truths, size)
        boxes = at_least_float32(queries.boxes)[pairs.image, pairs.query]
        giou = generalised_iou(pixels(boxes, pairs, size), true.pixels)
        return torch.stack([self.l1_weight * (boxes - true.shares).abs().sum(), self.giou_weight * (1 - giou).sum()])


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
        decoded: Decoded = raw.decoded
        all_pairs = [*matching.layers, *matching.selection, *matching.initial]
        sets = list(zip((*decoded.layers, *raw.selection, *decoded.initial), all_pairs, strict=True))
        cls = torch.stack([self.class_total(queries, pairs, truths, raw.size) for queries, pairs in sets]).sum()
        totals = [self.box_totals(queries, matching.union, truths, raw.size) for queries, _ in sets]
        l1, giou = torch.stack(totals).sum(0).unbind()
        fgl = self.fgl_total(decoded, matching.union, truths, raw.size)
        denoising = self.denoising_total(raw, truths, matching)
        for noisy in raw.denoising:
            denoising = denoising + self.fgl_total(noisy, matching.denoising, truths, raw.size) / matching.groups
        return {
            'cls': Term(cls, matching.boxes, least=1.0),
            'l1': Term(l1, matching.of_union, least=1.0),
            'giou': Term(giou, matching.of_union, least=1.0),
            'fgl': Term(fgl, matching.of_union, least=1.0),
            'ddf': self.ddf_term(raw, truths, matching),
            'denoising': Term(denoising, matching.boxes),
        }

    def fgl_total(self, decoded: Decoded, pairs: Pairs, truths: Truths, size: Tensor) -> Tensor:
        """Cross-entropy [] with the two bins beside each true distance, weighted by the IoU of the layer."""
        if not decoded.distances:
            return decoded.layers[-1].boxes.new_zeros(())
        # Targets have no gradient, not even where micro-batches join outputs as leaves.
        bins = decoded.bins[0][0].detach()
        left, right_share = beside(true_distances(decoded, pairs, truths, size), bins)
        total = bins.new_zeros(())
        for queries, distances in zip(decoded.layers, decoded.distances, strict=True):
            logits = by_side(distances)[pairs.image, pairs.query]  # [n, 4, bins]
            shares = logits.log_softmax(-1)
            low, high = (shares.gather(2, place[..., None])[..., 0] for place in (left, left + 1))
            losses = -((1 - right_share) * low + right_share * high).sum(1)
            total = total + (losses * overlaps(queries, pairs, truths, size)).sum()
        return self.fgl_weight * total

    def ddf_term(self, raw: QueryRaw, truths: Truths, matching: Matching) -> Term:
        """Decoupled distillation focal loss: the last layer teaches the distributions of the others.

        Matched queries and the others are averaged apart, over the whole step, then weighted by the roots of their numbers.
        """
        samples, queries = matching.samples, raw.decoded.layers[-1].logits.shape[1]
        counts = matched, others = matching.all_of_union, samples * queries - matching.all_of_union
        shares = [count.sqrt() / (matched.sqrt() + others.sqrt()) for count in counts]
        total = self.ddf_total(raw.decoded, matching.union, truths, raw.size, shares, counts)
        for noisy in raw.denoising:
            positive = matching.all_boxes * matching.groups
            of_noise = positive, samples * noisy.layers[-1].logits.shape[1] - positive
            own = self.ddf_total(noisy, matching.denoising, truths, raw.size, shares, of_noise)
            total = total + own * (positive > 0)
        weight = total.new_full((), float(len(raw.size)))
        return Term(self.ddf_weight * samples * total, weight)

    def ddf_total(
        self, decoded: Decoded, pairs: Pairs, truths: Truths, size: Tensor, shares: Sequence[Tensor], counts: Sequence[Tensor]
    ) -> Tensor:
        """Sum over layers; `shares` [] and `counts` [] are of matched and of other queries in the whole step."""
        factors = [share / (4 * count.clamp(min=1)) for share, count in zip(shares, counts, strict=True)]
        total = decoded.layers[-1].boxes.new_zeros(())
        if not decoded.distances:
            return total
        teacher = by_side(decoded.distances[-1].detach()) / TEMPERATURE
        certainty = at_least_float32(decoded.layers[-1].logits.detach()).sigmoid().amax(-1)  # [B, Q]
        at = pairs.image, pairs.query
        factor = torch.full_like(certainty, 0) + factors[1].to(certainty.dtype)
        factor[at] = factors[0].to(certainty.dtype).expand(len(pairs.query))
        teacher_log = teacher.log_softmax(-1)
        for queries, distances in zip(decoded.layers[:-1], decoded.distances[:-1], strict=True):
            weights = certainty.index_put(at, overlaps(queries, pairs, truths, size).to(certainty.dtype))
            student = (by_side(distances) / TEMPERATURE).log_softmax(-1)
            divergence = (teacher_log.exp() * (teacher_log - student)).sum((-1, -2))
            total = total + TEMPERATURE**2 * (factor * weights * divergence).sum()
        return total


def by_side(distances: Tensor) -> Tensor:
    """Logits [B, Q, 4, bins] of the distances of each side."""
    return at_least_float32(distances).view(*distances.shape[:2], 4, -1)


def true_boxes(pairs: Pairs, truths: Truths, size: Tensor) -> Boxes:
    corners = at_least_float32(truths.boxes)[pairs.image, pairs.truth]
    return Boxes(centres(corners / size[pairs.image].repeat(1, 2).to(corners.dtype)), corners)


def pixels(boxes: Tensor, pairs: Pairs, size: Tensor) -> Tensor:
    """Corners [n, 4] in pixels of the boxes [n, 4] of pairs."""
    return in_pixels(boxes[:, None], size[pairs.image])[:, 0]


def overlaps(queries: Queries, pairs: Pairs, truths: Truths, size: Tensor) -> Tensor:
    """IoU [n] of each pair, without a gradient."""
    boxes = at_least_float32(queries.boxes.detach())[pairs.image, pairs.query]
    return iou(pixels(boxes, pairs, size), true_boxes(pairs, truths, size).pixels)


def true_distances(decoded: Decoded, pairs: Pairs, truths: Truths, size: Tensor) -> Tensor:
    """Distances [n, 4] of the sides of the true boxes from those of the reference boxes, in the units of the bins."""
    references = at_least_float32(decoded.references[0].detach())[pairs.image, pairs.query]
    true, scale = true_boxes(pairs, truths, size).shares, decoded.bins[0][0, -1].detach()
    points, sides = references.chunk(2, -1)
    low, high = points - (true[:, :2] - true[:, 2:] / 2), (true[:, :2] + true[:, 2:] / 2) - points
    return torch.cat([low, high], 1) / (sides / scale + 1e-16).repeat(1, 2) - 0.5 * scale


def beside(distances: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """The bin before each distance, and the share of the one behind it, which is nearer the larger the share; both limited."""
    left = (torch.searchsorted(bins, distances.contiguous(), right=True) - 1).clamp(0, len(bins) - 2)
    low, high = bins[left], bins[left + 1]
    return left, ((distances - low) / (high - low)).clamp(0, 1)
