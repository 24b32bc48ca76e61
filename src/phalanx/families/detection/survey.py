"""What `phalanx data check` asks about the samples of a detection data set."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from phalanx.data.boxes import pairwise_iou
from phalanx.data.samples import Draw, FromSource, Image
from phalanx.families.detection.data import Objects
from phalanx.families.detection.draw import draw_objects

FINEST = 8  # pixels between the places that a detector looks at: the finest stride of these networks
SAME = 0.95  # the IoU from which on two boxes are one
SMALL, TWICE, AMBIGUOUS = '(smaller than a stride)', '(drawn twice)', '(of two classes at one place)'


@dataclass(frozen=True)
class BoxSurvey(FromSource):
    """The samples of one split as they lie in their files, counted by boxes."""

    class_names: tuple[str, ...]
    seen: Callable[[Image], tuple[float, float]]  # how many pixels of the network's input a pixel of an image is, x and y
    unit: str = 'boxes'

    @property
    def notes(self) -> list[str]:
        return [f'{count} {what}' for what, count in self.source.notes.items()]

    def count(self, index: int) -> tuple[Image, dict[str, int]]:
        """The image, and the boxes of each class; crowds and difficult ones are (ignored). Raises SampleError."""
        image, objects = self.source.read(Draw(index))
        rows = zip(objects.classes.tolist(), objects.ignored.tolist(), strict=True)
        counts = Counter('(ignored)' if ignored else self.class_names[label] for label, ignored in rows)
        present = objects.at(~objects.ignored)
        sides = (present.boxes[:, 2:] - present.boxes[:, :2]) * np.array(self.seen(image), np.float32)
        twice, ambiguous = count_duplicates(present)
        counts += Counter({SMALL: int((sides.min(1, initial=FINEST) < FINEST).sum()), TWICE: twice, AMBIGUOUS: ambiguous})
        return image, dict(counts)

    @property
    def cures(self) -> dict[str, str]:
        return {
            SMALL: f'a side of boxes is less than {FINEST} pixels of what the network sees, where it hardly learns them; '
            'enlarge the sizes in transforms and eval_transforms, or cut images into tiles',
            TWICE: 'boxes of one class lie on one another, and the second is a mistake whatever is found; remove it',
            AMBIGUOUS: 'boxes of two classes lie on one another, and cannot be told apart; decide for one of the classes',
        }

    def picture(self, index: int) -> Image:
        """The image with its boxes; ignored ones are grey."""
        image, objects = self.source.read(Draw(index))
        return draw_objects(image, objects, self.class_names)


def count_duplicates(objects: Objects) -> tuple[int, int]:
    """How many objects lie where another of their class is already, and how many where one of another class is."""
    boxes = torch.from_numpy(objects.boxes)
    on = np.triu(pairwise_iou(boxes, boxes).numpy() >= SAME, 1)  # [N, N] the second of a pair by column
    same = objects.classes[:, None] == objects.classes
    return int((on & same).any(0).sum()), int((on & ~same).any(0).sum())
