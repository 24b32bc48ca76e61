"""What `phalanx data check` asks about the samples of a detection data set."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from phalanx.data.samples import Draw, FromSource, Image
from phalanx.families.detection.draw import with_objects


@dataclass(frozen=True)
class BoxSurvey(FromSource):
    """The samples of one split as they lie in their files, counted by boxes."""

    class_names: tuple[str, ...]
    unit: str = 'boxes'

    @property
    def notes(self) -> list[str]:
        return [f'{count} {what}' for what, count in self.source.notes.items()]

    def count(self, index: int) -> tuple[Image, dict[str, int]]:
        """The image, and the boxes of each class; crowds and difficult ones are (ignored). Raises SampleError."""
        image, objects = self.source.read(Draw(index))
        rows = zip(objects.classes.tolist(), objects.ignored.tolist(), strict=True)
        return image, dict(Counter('(ignored)' if ignored else self.class_names[label] for label, ignored in rows))

    def picture(self, index: int) -> Image:
        """The image with its boxes; ignored ones are grey."""
        image, objects = self.source.read(Draw(index))
        return with_objects(image, objects, self.class_names)
