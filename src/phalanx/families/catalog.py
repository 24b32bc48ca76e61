"""The families, and what a recipe can choose in each by name. `plugins` adds what users bring."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from phalanx.families.base import Family
from phalanx.families.detection.task import Detection
from phalanx.families.recognition.task import Recognition
from phalanx.families.segmentation.task import Segmentation
from phalanx.families.table.task import TableStructure
from phalanx.families.text_detection.task import TextDetection

# The name a recipe gives as `task`, and the class of that Task, whose `Keys` are its part of the recipe.
FAMILIES: dict[str, type[Family]] = {
    'segmentation': Segmentation,
    'detection': Detection,
    'recognition': Recognition,
    'table': TableStructure,
    'text_detection': TextDetection,
}
# What kinds of parts a family has, each in one of its modules: `losses` are the dict LOSSES of the module `loss`.
KINDS = {'models': 'models', 'data': 'data', 'losses': 'loss', 'transforms': 'transforms', 'metrics': 'metric'}
# Of each family: what kind of part, and the parts of that kind by name.
CATALOGS: dict[str, dict[str, dict[str, Any]]] = {
    family: {
        kind: getattr(import_module(f'phalanx.families.{family}.{module}'), kind.upper()) for kind, module in KINDS.items()
    }
    for family in FAMILIES
}


def models() -> dict[str, Callable[..., nn.Module]]:
    """The networks of all families, for `phalanx.create_model`."""
    return {name: build for catalogs in CATALOGS.values() for name, build in catalogs['models'].items()}
