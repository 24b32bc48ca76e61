"""Pixel statistics of segmentation data sets, for `phalanx data check`."""

from dataclasses import dataclass

import numpy as np

from phalanx.data.samples import Draw, FromSource, Image
from phalanx.families.segmentation.draw import draw_overlay
from phalanx.families.segmentation.labels import VOID


@dataclass(frozen=True)
class PixelSurvey(FromSource):
    """Untransformed samples of one split; classes are counted in pixels."""

    class_names: tuple[str, ...]
    unit: str = 'pixels'

    when_absent = '`phalanx new` and `phalanx data prepare masks` turn masks with the values 0 and 255 into classes'

    def count(self, index: int) -> tuple[Image, dict[str, int]]:
        """Return the image and the pixels per class present, void as `(void)`. Raises SampleError."""
        image, labels = self.source.read(Draw(index))
        names = dict(enumerate(self.class_names)) | {VOID: '(void)'}
        # Values up to 255 (void); only those present are listed.
        pixels = np.bincount(labels.reshape(-1))
        return image, {names[value]: int(pixels[value]) for value in np.flatnonzero(pixels).tolist()}

    def picture(self, index: int) -> Image:
        """Return the image blended with the colours of its classes; void and background stay uncoloured."""
        image, labels = self.source.read(Draw(index))
        return draw_overlay(image, labels, self.class_names)
