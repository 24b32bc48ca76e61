"""What the guide of an exported file means; the modules named as the families say it for each."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from phalanx.runtime.prepare import Floats, Image
from phalanx.runtime.session import Run


class Family(ABC):
    """Reads the guide of a network."""

    def __init__(self, guide: Mapping[str, Any]) -> None:
        self.preparation, self.reading = guide['preparation'], guide['reading']

    @abstractmethod
    def prepare(self, image: Image) -> Floats:
        """What the network takes of an image, [3, h, w]."""

    def outputs(self, run: Run, images: Floats) -> dict[str, Any]:
        """What it says about prepared images [B, 3, h, w] of one size: arrays [B, ...]."""
        return run(images)

    @abstractmethod
    def prediction(self, outputs: Mapping[str, Any], image: Image) -> Any:
        """What the outputs mean, a row of each, for the image that they belong to: what a metric takes."""

    def result(self, prediction: Any, image: Image) -> Any:
        """The same as a person wants it."""
        return prediction
