"""Detection losses: terms of network output, true boxes and assignment."""

from collections.abc import Callable, Sequence
from typing import Any

from phalanx.families.detection.loss.assign import Assigned as Assigned
from phalanx.families.detection.loss.assign import Truths as Truths
from phalanx.families.detection.loss.assigners import ASSIGNERS as ASSIGNERS
from phalanx.families.detection.loss.assigners import Assigner as Assigner
from phalanx.families.detection.loss.distill import TEACHER_LOSSES as TEACHER_LOSSES
from phalanx.families.detection.loss.queries import DFINELoss, RTDETRLoss
from phalanx.families.detection.loss.task_aligned import TaskAlignedLoss
from phalanx.families.detection.loss.terms import DetectionLoss as DetectionLoss
from phalanx.families.detection.loss.terms import DistributionFocal, GIoU, QualityFocal, Varifocal
from phalanx.families.outputs import Shape, check_fields

LOSSES: dict[str, Callable[..., DetectionLoss]] = {
    'task_aligned': TaskAlignedLoss,
    'varifocal': Varifocal,
    'quality_focal': QualityFocal,
    'giou': GIoU,
    'dfl': DistributionFocal,
    'rtdetr': RTDETRLoss,
    'dfine': DFINELoss,
}


OUR_ASSIGNERS = tuple(ASSIGNERS.values())  # without those that plug-ins add


def check_outputs(outputs: Any, losses: Sequence[DetectionLoss], assigner: Assigner, B: int, K: int) -> None:
    """Raise RunError unless `outputs`, which may be a plug-in's, have what the assigners and losses here take for K classes."""
    if any(isinstance(loss, RTDETRLoss) for loss in losses):
        check_fields('training', outputs, {'size': (B, 2)})
    elif type(assigner) in OUR_ASSIGNERS:
        by_distances = hasattr(outputs, 'distances') or any(
            isinstance(each, TaskAlignedLoss | DistributionFocal) for each in losses
        )
        boxes: dict[str, Shape] = {'distances': (B, 'A', '4 bins')} if by_distances else {'boxes': (B, 'A', 4)}
        check_fields('training', outputs, {'logits': (B, 'A', K), **boxes, 'points': ('A', 2), 'strides': ('A',)})
