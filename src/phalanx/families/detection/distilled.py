"""Student detector with its frozen teacher. Shapes: B batch; C, h, w of a map."""

from typing import Any

from torch import nn

from phalanx.families.detection.models.ppyoloe import PPYOLOE
from phalanx.families.distillation import DistillationModel
from phalanx.parallel.norms import BatchNorm2d


class DistilledDetector(DistillationModel):
    """images [B, 3, H, W] -> {name: Raw} of student and teacher; in evaluation, the Raw of the student alone.

    Neck maps of both have the channels of the teacher and are normalised per channel over the batch. The 1x1 convolution that
    widens those of the student keeps its random weights, as in PaddleDetection, whose optimizer does not contain it.
    """

    def __init__(self, student: PPYOLOE, teacher: PPYOLOE) -> None:
        """Raises ValueError if a network is not a PPYOLOE, and if the two differ in levels or range of distances."""
        for name, network in (('model', student), ('teacher', teacher)):
            if not isinstance(network, PPYOLOE):
                kind = type(network).__name__
                raise ValueError(f'from_teacher: it compares the maps of two PP-YOLOE networks; the {name} is a {kind}')
        super().__init__({'student': student, 'teacher': teacher}, frozen=('teacher',))
        narrow, wide = student.neck.channels, teacher.neck.channels
        if len(narrow) != len(wide) or student.reach != teacher.reach:
            raise ValueError('teacher: must have the same levels and reach as the model')
        # 1x1 convolutions to the teacher's channels; not trained, as in PaddleDetection (see above).
        self.aligned = nn.ModuleList(
            nn.Identity() if few == many else nn.Conv2d(few, many, 1) for few, many in zip(narrow, wide, strict=True)
        )
        self.aligned.requires_grad_(False)
        self.norms = nn.ModuleDict(
            {name: nn.ModuleList(BatchNorm2d(count, eps=1e-12) for count in wide) for name in ('student', 'teacher')}
        )
        self.norms.requires_grad_(False)
        for conv in self.aligned:
            if isinstance(conv, nn.Conv2d):
                nn.init.kaiming_normal_(conv.weight, nonlinearity='relu')

    def forward(self, *inputs: Any) -> Any:
        outputs = super().forward(*inputs)
        if not self.training:
            return outputs
        norms: Any = self.norms
        student, teacher = outputs['student'], outputs['teacher']
        # Normalise both sides, so that the loss compares patterns and not magnitudes.
        aligned = [align(x) for align, x in zip(self.aligned, student.maps, strict=True)]
        of_teacher = tuple(norm(x) for norm, x in zip(norms['teacher'], teacher.maps, strict=True))
        of_student = tuple(norm(x) for norm, x in zip(norms['student'], aligned, strict=True))
        teacher = teacher._replace(maps=of_teacher)
        return {'student': student._replace(maps=of_student, teacher=teacher), 'teacher': teacher}
