"""Pixel statistics of segmentation data sets, for `phalanx data check` and the start of a training."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from phalanx.data.bands import Bands, to_rgb
from phalanx.data.image import LabelMap, find_background
from phalanx.data.samples import Draw, FromSource, Image, SampleError, Split
from phalanx.families.segmentation.draw import draw_overlay
from phalanx.families.segmentation.labels import VOID


@dataclass(frozen=True)
class PixelSurvey(FromSource):
    """Untransformed samples of one split; classes are counted in pixels."""

    class_names: tuple[str, ...]
    bands: Bands | None = None
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
        return draw_overlay(to_rgb(image, self.bands), labels, self.class_names)


MOST_READ = 200  # label maps read at the start of a training; classes that none has are named if these are all


@runtime_checkable
class LabelFiles(Protocol):
    """Source whose label maps can be read without their images."""

    def __len__(self) -> int: ...

    def labels(self, index: int) -> LabelMap:
        """Read a label map, [H, W] uint8. Raises SampleError."""


def describe_presence(source: Any, class_names: Sequence[str], split: Split) -> list[str]:
    """Return warnings about classes without pixels, and a split without labelled pixels, from up to MOST_READ label maps.

    Nothing is read of generated or mixed sources. Raises ValueError if most label maps have values without a class.
    """
    if not isinstance(source, LabelFiles):
        return []
    indices = np.unique(np.linspace(0, len(source) - 1, min(MOST_READ, len(source))).astype(int)).tolist()
    present, refused = Counter[int](), list[SampleError]()
    for index in indices:
        try:
            present.update(np.flatnonzero(np.bincount(source.labels(index).reshape(-1))).tolist())
        except SampleError as error:  # a few bad samples are counted and left out
            refused.append(error)
    if 2 * len(refused) > len(indices):
        raise ValueError(f'{split} data: {len(refused)} of {len(indices)} label maps cannot be used: {refused[0]}')
    seen = 'no label map' if len(indices) == len(source) else f'none of {len(indices)} label maps (of {len(source):,})'
    objects = present.keys() - {VOID, find_background(class_names)}
    verb = {'train': 'learned', 'eval': 'measured'}[split]
    if not objects:
        return [f'{split} data: {seen} has a pixel of a class besides background, so nothing can be {verb}']
    absent = [name for number, name in enumerate(class_names) if number not in present]
    if not absent or len(indices) < len(source):
        return []
    more = f' and {len(absent) - 10} more' if len(absent) > 10 else ''
    return [f'{split} data: {seen} has a pixel of {", ".join(absent[:10])}{more}, which cannot be {verb}']
