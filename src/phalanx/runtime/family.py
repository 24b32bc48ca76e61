"""Base class of the pre- and post-processing that the guide of an exported file describes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from phalanx.runtime.prepare import Floats, Image
from phalanx.runtime.session import Run


class Family(ABC):
    """Pre- and post-processing of a network, from its guide."""

    def __init__(self, guide: Mapping[str, Any]) -> None:
        self.preparation, self.reading = guide['preparation'], guide['reading']

    @abstractmethod
    def prepare(self, image: Image) -> Floats:
        """Prepare an image as input of the network, [3, h, w]."""

    def outputs(self, run: Run, images: Floats) -> dict[str, Any]:
        """Outputs of the network for prepared images [B, 3, h, w]: arrays [B, ...]."""
        return run(images)

    @abstractmethod
    def prediction(self, outputs: Mapping[str, Any], image: Image) -> Any:
        """Prediction of one image, as metrics take it, from its row of each output."""

    def result(self, prediction: Any, image: Image) -> Any:
        """Result for the user, from a prediction."""
        return prediction
