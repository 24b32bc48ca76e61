"""What `phalanx data check` asks about the samples of a data set of pages."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from phalanx.data.samples import Draw, FromSource, Image
from phalanx.families.text_detection.draw import draw_texts
from phalanx.families.text_detection.metric.polygons import is_simple

TEXT = 'text'


@dataclass(frozen=True)
class TextSurvey(FromSource):
    """The pages of one split as they lie in their files, counted by texts."""

    least_size: int  # of a text that is learnt, in pixels
    class_names: tuple[str, ...] = (TEXT,)
    unit: str = 'texts'

    def count(self, index: int) -> tuple[Image, dict[str, int]]:
        """The image, and its texts; those that cannot be learned or evaluated count besides, by why. Raises SampleError."""
        image, texts = self.source.read(Draw(index))
        H, W = image.shape[:2]
        kinds: Counter[str] = Counter()
        for points, ignored in zip(texts.outlines, texts.ignored, strict=True):
            outside = (points < -1).any() or (points > np.array([W + 1, H + 1])).any()
            kinds['(ignored)' if ignored else TEXT] += 1
            if not ignored:
                kinds['(reaches out of the image)'] += int(outside)
                kinds['(crosses itself)'] += int(not is_simple(points))
                kinds[f'(smaller than {self.least_size} pixels)'] += int(np.ptp(points, axis=0).min() < self.least_size)
        return image, dict(+kinds)

    def picture(self, index: int) -> Image:
        """The image with its texts; those to be ignored are grey."""
        return draw_texts(*self.source.read(Draw(index)))
