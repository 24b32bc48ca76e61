"""Statistics of text detection samples for `phalanx data check`."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from phalanx.data.samples import Draw, FromSource, Image
from phalanx.families.text_detection.draw import draw_texts
from phalanx.families.text_detection.metric.polygons import is_simple

TEXT = 'text'
OUTSIDE, CROSSES = '(extends beyond the image)', '(crosses itself)'


@dataclass(frozen=True)
class PageSurvey(FromSource):
    """Pages of one split as stored, counted by text."""

    min_size: int  # of a text to be learned, in pixels
    class_names: tuple[str, ...] = (TEXT,)
    unit: str = 'texts'

    def count(self, index: int) -> tuple[Image, dict[str, int]]:
        """Return the image, the number of its texts, and the numbers of unusable ones by reason. Raises SampleError."""
        # Outlines as stored, before any transform clips them.
        image, texts = self.source.read(Draw(index))
        H, W = image.shape[:2]
        kinds: Counter[str] = Counter()
        for points, ignored in zip(texts.outlines, texts.ignored, strict=True):
            # Annotations may exceed the image by a pixel.
            outside = (points < -1).any() or (points > np.array([W + 1, H + 1])).any()
            kinds['(ignored)' if ignored else TEXT] += 1
            if not ignored:  # ignored texts are neither learned nor evaluated, so their outline does not matter
                kinds[OUTSIDE] += int(outside)
                kinds[CROSSES] += int(not is_simple(points))
                kinds[self.too_small] += int(np.ptp(points, axis=0).min() < self.min_size)
        return image, dict(+kinds)

    @property
    def too_small(self) -> str:
        return f'(smaller than {self.min_size} pixels)'

    @property
    def cures(self) -> dict[str, str]:
        return {
            OUTSIDE: 'only the part within the image is learned; check that outlines are in pixels of the image',
            CROSSES: 'no text has such an outline; put its points in order, clockwise from the upper left',
            self.too_small: 'they are ignored in training; `targets.min_text_size` is the limit',
        }

    def picture(self, index: int) -> Image:
        """Return the image with its texts, ignored ones in grey."""
        return draw_texts(*self.source.read(Draw(index)))
