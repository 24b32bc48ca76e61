"""Detection losses: called with the output of a network and the true boxes and classes of each image, they give named Terms."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from phalanx.families.detection.decode import Raw
from phalanx.families.detection.loss.distill import TEACHER_LOSSES as TEACHER_LOSSES
from phalanx.families.detection.loss.distill import TeacherLoss
from phalanx.families.detection.loss.task_aligned import TaskAlignedLoss
from phalanx.families.task import Loss
from phalanx.parallel.step import WholeStep


class DetectionLoss(Protocol):
    """What every detection loss is. `boxes` [n, 4] (pixels of the input) and `classes` [n] are those of each image."""

    def __call__(
        self,
        raw: Raw,
        boxes: Sequence[Tensor],
        classes: Sequence[Tensor],
        whole: WholeStep,
        from_teacher: Sequence[TeacherLoss] = (),
    ) -> Loss:
        """`raw` is the output of the network; where it has that of a teacher, what is learned `from_teacher` comes on top.

        Without a teacher it is called without `from_teacher`.
        """

    def weights(self, boxes: Sequence[Tensor], classes: Sequence[Tensor]) -> Mapping[str, Tensor] | None:
        """The weights [] of its Terms, where targets alone determine them; None where outputs do and all Terms share one."""


LOSSES = {'task_aligned': TaskAlignedLoss}
