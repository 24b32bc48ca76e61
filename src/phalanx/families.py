"""The families: the name a recipe gives as `task`, and the class that is both its configuration section and its Task."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from phalanx.segmentation.models import MODELS as SEGMENTATION_MODELS
from phalanx.segmentation.task import Segmentation

FAMILIES: dict[str, type] = {'segmentation': Segmentation}
MODELS: dict[str, Callable[..., nn.Module]] = {**SEGMENTATION_MODELS}  # of all families, for `phalanx.create_model`
