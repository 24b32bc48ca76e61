"""The families, and what a recipe can choose in each by name. `plugins` adds what users bring."""

from collections.abc import Callable
from typing import Any

from torch import nn

from phalanx.families.base import Family
from phalanx.families.detection.data import DATA as DETECTION_DATA
from phalanx.families.detection.loss import LOSSES as DETECTION_LOSSES
from phalanx.families.detection.metric import METRICS as DETECTION_METRICS
from phalanx.families.detection.models import MODELS as DETECTION_MODELS
from phalanx.families.detection.task import Detection
from phalanx.families.detection.transforms import TRANSFORMS as DETECTION_TRANSFORMS
from phalanx.families.recognition.data import DATA as RECOGNITION_DATA
from phalanx.families.recognition.loss import LOSSES as RECOGNITION_LOSSES
from phalanx.families.recognition.metric import METRICS as RECOGNITION_METRICS
from phalanx.families.recognition.models import MODELS as RECOGNITION_MODELS
from phalanx.families.recognition.task import Recognition
from phalanx.families.recognition.transforms import TRANSFORMS as RECOGNITION_TRANSFORMS
from phalanx.families.segmentation.data import DATA as SEGMENTATION_DATA
from phalanx.families.segmentation.loss import LOSSES as SEGMENTATION_LOSSES
from phalanx.families.segmentation.metric import METRICS as SEGMENTATION_METRICS
from phalanx.families.segmentation.models import MODELS as SEGMENTATION_MODELS
from phalanx.families.segmentation.task import Segmentation
from phalanx.families.segmentation.transforms import TRANSFORMS as SEGMENTATION_TRANSFORMS
from phalanx.families.table.data import DATA as TABLE_DATA
from phalanx.families.table.loss import LOSSES as TABLE_LOSSES
from phalanx.families.table.metric import METRICS as TABLE_METRICS
from phalanx.families.table.models import MODELS as TABLE_MODELS
from phalanx.families.table.task import TableStructure
from phalanx.families.table.transforms import TRANSFORMS as TABLE_TRANSFORMS
from phalanx.families.text_detection.data import DATA as TEXT_DETECTION_DATA
from phalanx.families.text_detection.loss import LOSSES as TEXT_DETECTION_LOSSES
from phalanx.families.text_detection.metric import METRICS as TEXT_DETECTION_METRICS
from phalanx.families.text_detection.models import MODELS as TEXT_DETECTION_MODELS
from phalanx.families.text_detection.task import TextDetection
from phalanx.families.text_detection.transforms import TRANSFORMS as TEXT_DETECTION_TRANSFORMS

# The name a recipe gives as `task`, and the class of that Task, whose `Keys` are its part of the recipe.
FAMILIES: dict[str, type[Family]] = {
    'segmentation': Segmentation,
    'detection': Detection,
    'recognition': Recognition,
    'table': TableStructure,
    'text_detection': TextDetection,
}
# Of each family: what kind of part, and the parts of that kind by name.
CATALOGS: dict[str, dict[str, dict[str, Any]]] = {
    'segmentation': {
        'models': SEGMENTATION_MODELS,
        'data': SEGMENTATION_DATA,
        'losses': SEGMENTATION_LOSSES,
        'transforms': SEGMENTATION_TRANSFORMS,
        'metrics': SEGMENTATION_METRICS,
    },
    'detection': {
        'models': DETECTION_MODELS,
        'data': DETECTION_DATA,
        'losses': DETECTION_LOSSES,
        'transforms': DETECTION_TRANSFORMS,
        'metrics': DETECTION_METRICS,
    },
    'recognition': {
        'models': RECOGNITION_MODELS,
        'data': RECOGNITION_DATA,
        'losses': RECOGNITION_LOSSES,
        'transforms': RECOGNITION_TRANSFORMS,
        'metrics': RECOGNITION_METRICS,
    },
    'table': {
        'models': TABLE_MODELS,
        'data': TABLE_DATA,
        'losses': TABLE_LOSSES,
        'transforms': TABLE_TRANSFORMS,
        'metrics': TABLE_METRICS,
    },
    'text_detection': {
        'models': TEXT_DETECTION_MODELS,
        'data': TEXT_DETECTION_DATA,
        'losses': TEXT_DETECTION_LOSSES,
        'transforms': TEXT_DETECTION_TRANSFORMS,
        'metrics': TEXT_DETECTION_METRICS,
    },
}


def models() -> dict[str, Callable[..., nn.Module]]:
    """The networks of all families, for `phalanx.create_model`."""
    return {name: build for catalogs in CATALOGS.values() for name, build in catalogs['models'].items()}
