"""The loss of PP-YOLOE. Shapes: B batch, A anchors, K classes, P anchors of an image that can answer for a box."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.data.boxes import generalised_iou, to_distances
from phalanx.families.detection import decode
from phalanx.families.detection.decode import Raw
from phalanx.families.detection.loss.assign import Assigned, Truths, by_position, by_task, padded
from phalanx.families.detection.loss.distill import TeacherLoss
from phalanx.families.task import Loss, Term
from phalanx.parallel.step import WholeStep

VARIFOCAL_SHARE, FOCAL_SHARE = 0.75, 0.25  # alpha of the two losses, their gamma being 2
NEARLY = 0.01  # no target distance is nearer to the last bin: the bin after it must exist


@dataclass(frozen=True, kw_only=True)
class TaskAlignedLoss:
    """The loss terms of PP-YOLOE: `cls` of every anchor, `iou` and `dfl` (distribution focal) of the positive ones.

    All are divided by the sum of the positives' scores over the whole step, or by 1 when it is less. (PaddleDetection's
    least sum is 1 a rank; the number of ranks must not matter here.) Which anchors are positive is decided by position for
    `static_assigner_epochs` (None: for a third of the run), then by what the network says: see `assign`.

    Raises ValueError for numbers of candidates below 1, an `anchor_size` not above 0 and negative weights.
    """

    static_assigner_epochs: int | None = None  # PP-YOLOE: 100 of 300, PP-YOLOE+: 30 of 80
    cls_weight: float = 1.0
    iou_weight: float = 2.5
    dfl_weight: float = 0.5
    use_varifocal: bool = True  # False: quality focal loss
    static_top_k: int = 9  # candidates for a box on each level
    anchor_size: float = 5.0  # in strides
    top_k: int = 13  # candidates for a box over all levels, task-aligned
    alpha: float = 1.0
    beta: float = 6.0
    center_radius: float | None = None  # anchors so many strides beside the centre of a box answer too; see `assign.by_task`

    def __post_init__(self) -> None:
        for name, least in (('static_top_k', 1), ('top_k', 1), ('cls_weight', 0), ('iou_weight', 0), ('dfl_weight', 0)):
            if getattr(self, name) < least:
                raise ValueError(f'{name} must be at least {least}, got {getattr(self, name)}')
        if self.anchor_size <= 0:
            raise ValueError(f'anchor_size must be above 0 strides, got {self.anchor_size}')

    def __call__(
        self,
        raw: Raw,
        boxes: Sequence[Tensor],
        classes: Sequence[Tensor],
        whole: WholeStep,
        from_teacher: Sequence[TeacherLoss] = (),
    ) -> Loss:
        """`boxes` [n, 4] in pixels of the input and `classes` [n] are those of each image; there may be none.

        Where `raw` has the output of a teacher, that decides which anchors are positive, and what is learned `from_teacher`
        comes on top.
        """
        teacher, dtype = raw.teacher, raw.points.dtype  # float32 or better, also where the network is in half precision
        truths = padded(boxes, classes, dtype)
        predicted = decode.boxes(raw)  # [B, A, 4]
        static_epochs = whole.epochs / 3 if self.static_assigner_epochs is None else self.static_assigner_epochs
        is_static = whole.epoch < static_epochs
        with torch.no_grad():
            if teacher is None or is_static:
                assigned = self.assign(truths, predicted, raw, is_static=is_static)
            else:
                assigned = self.assign(truths, decode.boxes(teacher), teacher, is_static=False)
            weight = assigned.score.sum()
        image, anchor, score = assigned.positives()
        true_boxes = truths.boxes[image, assigned.truth.gather(1, anchor)]  # [B, P, 4]
        targets = to_distances(raw.points[anchor], true_boxes) / raw.strides[anchor, None]
        dfl = _of_distributions(raw.distances[image, anchor].to(dtype), targets, raw.least)
        totals = {
            'cls': self.cls_weight * self._of_classes(raw.logits.to(dtype), truths, assigned, is_static=is_static),
            'iou': self.iou_weight * ((1 - generalised_iou(predicted[image, anchor], true_boxes)) * score).sum(),
            'dfl': self.dfl_weight * (dfl * score).sum(),
        }
        terms = {name: Term(total, weight, least=1.0) for name, total in totals.items()}
        if teacher is not None:
            for learn in from_teacher:
                terms |= learn(raw, teacher, truths, assigned)
        return terms

    def weights(self, boxes: Sequence[Tensor], classes: Sequence[Tensor]) -> None:
        """The sum of the scores of the positive anchors, known after the forward pass; all terms share it."""

    def assign(self, truths: Truths, predicted: Tensor, raw: Raw, *, is_static: bool) -> Assigned:
        """Which anchors answer for the true boxes; `predicted` [B, A, 4] are the boxes of `raw`."""
        if is_static:
            return by_position(truths, predicted, raw, top_k=self.static_top_k, anchor_size=self.anchor_size)
        alpha, beta, radius = self.alpha, self.beta, self.center_radius
        return by_task(truths, predicted, raw, top_k=self.top_k, alpha=alpha, beta=beta, center_radius=radius)

    def _of_classes(self, logits: Tensor, truths: Truths, assigned: Assigned, *, is_static: bool) -> Tensor:
        """The loss of the logits [B, A, K], summed. Gradients flow through the weights too, as in PaddleDetection.

        Varifocal: Zhang et al., https://arxiv.org/abs/2008.13367. Quality focal: Li et al., https://arxiv.org/abs/2006.04388.
        """
        at = truths.classes.gather(1, assigned.truth)[..., None]  # [B, A, 1] the class that each anchor would answer with
        targets = torch.zeros_like(logits).scatter(2, at, assigned.score[..., None])
        probabilities = logits.sigmoid()
        if self.use_varifocal:
            answers = torch.zeros_like(logits, dtype=torch.bool).scatter(2, at, assigned.answers[..., None])
            weights = torch.where(answers, targets, VARIFOCAL_SHARE * probabilities.square())
        else:
            weights = (probabilities - targets).square()
            if is_static:
                weights = weights * torch.lerp(1 - targets, targets, FOCAL_SHARE)
        return (weights * F.binary_cross_entropy_with_logits(logits, targets, reduction='none')).sum()


def _of_distributions(logits: Tensor, targets: Tensor, least: int) -> Tensor:  # [B, P, 4 * bins], [B, P, 4] -> [B, P]
    """Distribution focal loss: cross-entropy with the two bins beside each target, weighted by nearness; the mean of 4 sides.

    Li et al., Generalized Focal Loss, https://arxiv.org/abs/2006.04388.
    """
    log_shares = logits.view(*targets.shape, -1).log_softmax(-1)
    targets = (targets - least).clamp(0, log_shares.shape[-1] - 1 - NEARLY)  # counted from the first bin
    before = targets.long()
    beyond = targets - before
    low, high = (log_shares.gather(-1, place[..., None]).squeeze(-1) for place in (before, before + 1))  # [B, P, 4]
    return -((1 - beyond) * low + beyond * high).mean(-1)
