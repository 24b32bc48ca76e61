"""What a network found on one image."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phalanx.families.detection.data.source import Boxes


@dataclass(frozen=True)
class Detections:
    """What was found on one image, the most probable first; not clipped to it."""

    boxes: Boxes  # [n, 4] xyxy in pixels of the image as it was read
    scores: npt.NDArray[np.float32]  # [n] 0 to 1
    classes: npt.NDArray[np.int64]  # [n]

    def __len__(self) -> int:
        return len(self.boxes)
