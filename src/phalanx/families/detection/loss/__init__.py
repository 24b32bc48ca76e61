"""Detection losses: terms of network output, true boxes and assignment."""

from collections.abc import Callable

from phalanx.families.detection.loss.assign import Assigned as Assigned
from phalanx.families.detection.loss.assign import Truths as Truths
from phalanx.families.detection.loss.assigners import ASSIGNERS as ASSIGNERS
from phalanx.families.detection.loss.assigners import Assigner as Assigner
from phalanx.families.detection.loss.distill import TEACHER_LOSSES as TEACHER_LOSSES
from phalanx.families.detection.loss.queries import DFINELoss, RTDETRLoss
from phalanx.families.detection.loss.task_aligned import TaskAlignedLoss
from phalanx.families.detection.loss.terms import DetectionLoss as DetectionLoss
from phalanx.families.detection.loss.terms import DistributionFocal, GIoU, QualityFocal, Varifocal

LOSSES: dict[str, Callable[..., DetectionLoss]] = {
    'task_aligned': TaskAlignedLoss,
    'varifocal': Varifocal,
    'quality_focal': QualityFocal,
    'giou': GIoU,
    'dfl': DistributionFocal,
    'rtdetr': RTDETRLoss,
    'dfine': DFINELoss,
}
