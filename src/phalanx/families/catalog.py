"""The families: the name a recipe gives as `task`, and the class that is both its configuration section and its Task."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from phalanx.families.detection.models import MODELS as DETECTION_MODELS
from phalanx.families.detection.task import Detection
from phalanx.families.recognition.models import MODELS as RECOGNITION_MODELS
from phalanx.families.recognition.task import Recognition
from phalanx.families.segmentation.models import MODELS as SEGMENTATION_MODELS
from phalanx.families.segmentation.task import Segmentation
from phalanx.families.table.models import MODELS as TABLE_MODELS
from phalanx.families.table.task import TableStructure

FAMILIES: dict[str, type] = {
    'segmentation': Segmentation,
    'detection': Detection,
    'recognition': Recognition,
    'table': TableStructure,
}
# Of all families, for `phalanx.create_model`.
MODELS: dict[str, Callable[..., nn.Module]] = {**SEGMENTATION_MODELS, **DETECTION_MODELS, **RECOGNITION_MODELS, **TABLE_MODELS}
