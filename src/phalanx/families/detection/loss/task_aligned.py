"""Loss of PP-YOLOE as one entry: three terms and the assigner."""

from dataclasses import dataclass

from phalanx.families.detection.decode import Raw
from phalanx.families.detection.loss.assign import Assigned, Truths
from phalanx.families.detection.loss.assigners import AtssThenTaskAligned, check_at_least
from phalanx.families.detection.loss.terms import DetectionLoss, DistributionFocal, GIoU, QualityFocal, Varifocal
from phalanx.families.task import Loss


@dataclass(frozen=True, kw_only=True)
class TaskAlignedLoss(DetectionLoss):
    """Shorthand for `loss: [varifocal, giou, dfl]` with `assigner: atss_then_task_aligned`, with all their options.

    Raises ValueError for numbers of candidates below 1, an `anchor_size` not above 0 and negative weights.
    """

    static_assigner_epochs: int | None = None  # PP-YOLOE: 100 of 300, PP-YOLOE+: 30 of 80; None: a third of the run
    cls_weight: float = 1.0
    iou_weight: float = 2.5
    dfl_weight: float = 0.5
    use_varifocal: bool = True  # False: quality focal loss
    static_top_k: int = 9  # ATSS: candidates per box and level
    anchor_size: float = 5.0  # in strides
    top_k: int = 13  # TAL: candidates per box, over all levels
    alpha: float = 1.0
    beta: float = 6.0
    center_radius: float | None = None  # TAL: distance in strides within which anchors are candidates too

    def __post_init__(self) -> None:
        check_at_least(self, 0, 'cls_weight', 'iou_weight', 'dfl_weight')
        _ = self.assigner

    def __call__(self, raw: Raw, truths: Truths, assigned: Assigned) -> Loss:
        classes = Varifocal if self.use_varifocal else QualityFocal
        terms = classes(weight=self.cls_weight), GIoU(weight=self.iou_weight), DistributionFocal(weight=self.dfl_weight)
        return {name: term for of in terms for name, term in of(raw, truths, assigned).items()}

    @property
    def assigner(self) -> AtssThenTaskAligned:
        return AtssThenTaskAligned(
            static_epochs=self.static_assigner_epochs,
            static_top_k=self.static_top_k,
            anchor_size=self.anchor_size,
            top_k=self.top_k,
            alpha=self.alpha,
            beta=self.beta,
            center_radius=self.center_radius,
        )
