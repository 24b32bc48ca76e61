"""Losses between a student detector and its teacher: PaddleDetection's distillation of PP-YOLOE.

Shapes: B batch, A anchors, K classes, P = `max_positives`, N true boxes; C, H, W of a map.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.data.boxes import generalised_iou
from phalanx.families.detection.decode import Raw
from phalanx.families.detection.loss.assign import Assigned, Truths
from phalanx.families.detection.loss.terms import DetectionLoss
from phalanx.families.task import Loss, Term
from phalanx.nn.precision import at_least_float32

EPSILON = 1e-9  # minimum weight: a step without positive anchors costs 0, not 0/0


@dataclass(frozen=True, kw_only=True)
class LogitsFromTeacher(DetectionLoss):
    """Terms `teacher_cls` of all anchors, and `teacher_iou`, `teacher_dfl` and `teacher_classes` of positive ones.

    The student learns the probabilities of the teacher (quality focal loss, https://arxiv.org/abs/2006.04388), its boxes
    (1 - GIoU) and its distributions of distances (cross-entropy), all divided by the sum of the scores; and the same relation
    of the classes: the Kullback-Leibler divergence of the softmax over probabilities at a `temperature`, a mean over anchors
    and classes times temperature² (Zheng et al., Localization Distillation, https://arxiv.org/abs/2102.12252).
    """

    weight: float = 4.0  # of all terms
    cls_weight: float = 1.0
    iou_weight: float = 2.5
    dfl_weight: float = 0.5
    classes_weight: float = 20000.0  # 0: no such term
    temperature: float = 10.0

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f'temperature must be above 0, got {self.temperature}')

    def __call__(self, raw: Raw, truths: Truths, assigned: Assigned) -> Loss:
        student, teacher = raw, get_teacher(raw)
        own, others = student.logits.to(student.points.dtype), teacher.logits.to(student.points.dtype).sigmoid()
        probabilities = own.sigmoid()
        # Quality focal loss: cross-entropy with the teacher's probabilities, weighted by the squared difference.
        cls = F.binary_cross_entropy_with_logits(own, others, reduction='none') * (probabilities - others).square()

        # Boxes and distributions count at positive anchors only.
        (image, anchor, score), scores = assigned.positives, assigned.score_sum
        ious = generalised_iou(student.boxes[image, anchor], teacher.boxes[image, anchor])
        distances = (of.distances[image, anchor].to(own.dtype).view(*score.shape, 4, -1) for of in (student, teacher))
        log_shares, shares = (logits.log_softmax(-1) for logits in distances)  # [B, P, 4, bins]
        dfl = -(shares.exp() * log_shares).sum((2, 3))
        terms = {
            'teacher_cls': Term(self.weight * self.cls_weight * cls.sum(), scores, least=1.0),
            'teacher_iou': Term(self.weight * self.iou_weight * ((1 - ious) * score).sum(), scores, least=EPSILON),
            'teacher_dfl': Term(self.weight * self.dfl_weight / 4 * (dfl * score).sum(), scores, least=EPSILON),
        }
        # Relation of the classes, softened by the temperature.
        if self.classes_weight:
            T = self.temperature
            relations = F.kl_div((probabilities / T).log_softmax(-1), (others / T).softmax(-1), reduction='none').mean(-1)
            answers = assigned.fg_mask.to(own.dtype)  # [B, A]
            total = self.weight * self.classes_weight * (relations * T * T * answers).sum()
            terms['teacher_classes'] = Term(total, answers.sum(), least=1.0)
        return terms


@dataclass(frozen=True, kw_only=True)
class FeaturesFromTeacher(DetectionLoss):
    """Term `teacher_features`: differences of neck maps from those of the teacher, weighted towards objects.

    Focal and global distillation, Yang et al., https://arxiv.org/abs/2111.11837, as PaddleDetection computes it: squared
    differences weighted by the teacher's spatial and channel attention, once with all objects of equal weight whatever their
    size (`foreground`), once with everything else (`background`), and without weights (`everywhere`: what remains of the
    paper's relation of pixels, whose layers are zero there and never trained); and differences of the attentions (`attention`).
    """

    weight: float = 1.0  # factor of the whole term
    foreground: float = 1e-5
    background: float = 5e-6
    attention: float = 1e-5
    everywhere: float = 5e-8
    temperature: float = 0.5  # of the attentions

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f'temperature must be above 0, got {self.temperature}')

    def __call__(self, raw: Raw, truths: Truths, assigned: Assigned) -> Loss:
        """Maps of both are aligned and normalised by `DistilledDetector`."""
        student, teacher = raw, get_teacher(raw)
        total, start = student.points.new_zeros(()), 0
        for own, other, count in zip(student.maps, teacher.maps, student.num_per_level, strict=True):
            cells = truths.boxes / student.strides[start]
            total = total + self.level_loss(at_least_float32(own), at_least_float32(other), cells, truths.exist)
            start += count
        samples = truths.boxes.new_full((), len(truths.boxes))
        return {'teacher_features': Term(self.weight * total, samples)}

    def level_loss(self, own: Tensor, other: Tensor, cells: Tensor, exist: Tensor) -> Tensor:
        """The loss, summed over images, of maps [B, C, H, W] with the true boxes [B, N, 4] in cells, where they `exist`."""
        # Attention maps of the teacher weigh the differences; their own differences are a term as well.
        (places, channels), (own_places, own_channels) = (self.attentions(x) for x in (other, own))
        # Per object and for the background, weights sum to 1: large objects do not outweigh small ones.
        foreground = foreground_weights(cells, exist, own.shape[2], own.shape[3])
        background = (foreground == 0).to(own.dtype)
        background = background / background.sum((1, 2), keepdim=True).clamp(min=1)
        squares = (own - other).square()
        attended = (squares * channels[:, :, None, None]).sum(1) * places  # [B, H, W]
        differences = (own_places - places).abs().sum() + (own_channels - channels).abs().sum()
        return (
            (attended * (self.foreground * foreground + self.background * background)).sum()
            + self.attention * differences
            + self.everywhere * squares.sum()
        )

    def attentions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Spatial attention [B, H, W] and channel attention [B, C] of a map [B, C, H, W]; 1 on average."""
        strengths = x.abs() / self.temperature
        places = strengths.mean(1).flatten(1).softmax(1) * (x.shape[2] * x.shape[3])
        return places.view(len(x), *x.shape[2:]), strengths.mean((2, 3)).softmax(1) * x.shape[1]


def get_teacher(raw: Raw) -> Raw:
    """Output of the teacher. Raises ValueError if there is none."""
    if raw.teacher is None:
        raise ValueError('from_teacher: the network has no teacher')
    return raw.teacher


def foreground_weights(cells: Tensor, exist: Tensor, height: int, width: int) -> Tensor:
    """[B, H, W]: 1 / the area of the smallest box [B, N, 4] around each cell, both in whole cells; 0 outside of boxes."""
    low, high = cells[..., :2].floor().clamp(min=0), cells[..., 2:].ceil()
    shares = exist / (high + 1 - low).prod(-1)  # [B, N]
    # A box is an outer product of an interval of rows and one of columns: no loop over boxes.
    inside = []
    for axis, length in ((1, height), (0, width)):
        places = torch.arange(length, device=cells.device, dtype=cells.dtype)
        inside.append((places >= low[..., axis, None]) & (places <= high[..., axis, None]))  # [B, N, length]
    rows, columns = inside
    return (rows[..., :, None] & columns[..., None, :]).mul(shares[..., None, None]).amax(1)


TEACHER_LOSSES: dict[str, Callable[..., DetectionLoss]] = {'logits': LogitsFromTeacher, 'features': FeaturesFromTeacher}
