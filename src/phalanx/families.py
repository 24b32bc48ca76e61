"""The families: the name a recipe gives as `task`, and the class that is both its configuration section and its Task."""

from __future__ import annotations

from phalanx.segmentation.task import Segmentation

FAMILIES: dict[str, type] = {'segmentation': Segmentation}
