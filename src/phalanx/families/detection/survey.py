"""Survey of a detection data set, for `phalanx data check`."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from phalanx.data.bands import Bands, to_rgb
from phalanx.data.boxes import pairwise_iou
from phalanx.data.samples import Draw, FromSource, Image
from phalanx.families.detection.data import Objects
from phalanx.families.detection.draw import draw_objects

FINEST = 8  # finest stride of the networks, in pixels
SAME = 0.95  # minimum IoU of duplicate boxes
SMALL, TWICE, AMBIGUOUS = '(smaller than a stride)', '(drawn twice)', '(of two classes at one place)'


@dataclass(frozen=True)
class BoxSurvey(FromSource):
    """Samples of one split before transforms, counted by boxes."""

    class_names: tuple[str, ...]
    scales: Callable[[Image], tuple[float, float]]  # image -> scale factors in x and y of the transforms
    bands: Bands | None = None
    unit: str = 'boxes'

    @property
    def notes(self) -> list[str]:
        return [f'{count} {what}' for what, count in self.source.notes.items()]

    def count(self, index: int) -> tuple[Image, dict[str, int]]:
        """Image, and number of boxes per class; crowds and difficult objects count as (ignored). Raises SampleError."""
        image, objects = self.source.read(Draw(index))
        rows = zip(objects.classes.tolist(), objects.ignored.tolist(), strict=True)
        counts = Counter('(ignored)' if ignored else self.class_names[label] for label, ignored in rows)
        # Sides at the input of the network: objects smaller than its finest stride have no anchor of their own.
        present = objects.at(~objects.ignored)
        sides = (present.boxes[:, 2:] - present.boxes[:, :2]) * np.array(self.scales(image), np.float32)
        twice, ambiguous = count_duplicates(present)
        counts += Counter({SMALL: int((sides.min(1, initial=FINEST) < FINEST).sum()), TWICE: twice, AMBIGUOUS: ambiguous})
        return image, dict(counts)

    @property
    def cures(self) -> dict[str, str]:
        return {
            SMALL: f'a side of boxes is less than {FINEST} pixels at the input of the network, too small to be learned well; '
            'enlarge the sizes in transforms and eval_transforms, or see images in windows (inference.window)',
            TWICE: 'two boxes of one class are at the same place, so one of them always counts as missed; remove one',
            AMBIGUOUS: 'boxes of two classes are at the same place, which confuses training; decide for one of the classes',
        }

    def picture(self, index: int) -> Image:
        """Image with its boxes; ignored ones are grey."""
        image, objects = self.source.read(Draw(index))
        return draw_objects(to_rgb(image, self.bands), objects, self.class_names)


def count_duplicates(objects: Objects) -> tuple[int, int]:
    """Numbers of objects at the box of another object of the same class, and of another class."""
    boxes = torch.from_numpy(objects.boxes)
    # Upper triangle: of each pair, the second box counts.
    on = np.triu(pairwise_iou(boxes, boxes).numpy() >= SAME, 1)  # [N, N] the second of a pair by column
    same = objects.classes[:, None] == objects.classes
    return int((on & same).any(0).sum()), int((on & ~same).any(0).sum())
