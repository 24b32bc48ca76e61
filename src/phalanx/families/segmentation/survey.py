"""What `phalanx data check` asks about the samples of a segmentation data set."""

from dataclasses import dataclass

import numpy as np

from phalanx.data.image import overlay
from phalanx.data.samples import Draw, FromSource, Image
from phalanx.families.segmentation.draw import draw_class_map
from phalanx.families.segmentation.labels import VOID


@dataclass(frozen=True)
class PixelSurvey(FromSource):
    """The samples of one split as they lie in their files, counted by pixels."""

    class_names: tuple[str, ...]
    unit: str = 'pixels'

    when_absent = 'of masks with the values 0 and 255, `phalanx new` and `phalanx data prepare masks` make classes'

    def count(self, index: int) -> tuple[Image, dict[str, int]]:
        """The image, and the pixels of each class; void is named (void). Raises SampleError."""
        image, labels = self.source.read(Draw(index))
        names = dict(enumerate(self.class_names)) | {VOID: '(void)'}
        pixels = np.bincount(labels.reshape(-1))
        return image, {names[value]: int(pixels[value]) for value in np.flatnonzero(pixels).tolist()}

    def picture(self, index: int) -> Image:
        """The image with the colours of its classes over it; void pixels stay as they are."""
        image, labels = self.source.read(Draw(index))
        return np.where(labels[..., None] == VOID, image, overlay(image, draw_class_map(labels), 0.5))
