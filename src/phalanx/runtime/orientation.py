"""Images of lines to the probability that they are upside down."""

from collections.abc import Mapping
from typing import Any

from phalanx.runtime.family import Family
from phalanx.runtime.prepare import Floats, Image, fit_line, normalise, pad_with_zeros, size_of


class Orientation(Family):
    """Pre- and post-processing of a network for the orientation of text lines."""

    def prepare(self, image: Image) -> Floats:
        fitted, width = fit_line(image, size_of(self.preparation, 'image_size'), keep_ratio=self.preparation['keep_ratio'])
        return pad_with_zeros(normalise(fitted[:, :width], self.preparation), *fitted.shape[:2])

    def prediction(self, outputs: Mapping[str, Any], image: Image) -> float:
        return float(outputs['probabilities'][1])  # of 0 and 180 degrees
