"""The data set that comes with the package: digit scenes, drawn on demand. Every pixel of ink is its digit."""

from __future__ import annotations

from phalanx.data import scenes
from phalanx.data.image import LabelMap
from phalanx.data.samples import Image, Split
from phalanx.families.segmentation.labels import VOID

assert scenes.EDGE == VOID  # pixels between ink and background are not judged


class DigitScenes:
    """Digits over textures, pictures of `size` (height, width) in pixels; the two splits use different handwritten digits.

    `digit_height`: the smallest and the largest digit, in pixels.
    """

    def __init__(
        self,
        *,
        train_scenes: int = 2000,
        eval_scenes: int = 200,
        size: tuple[int, int] = (128, 192),
        digit_height: tuple[float, float] = (32, 72),
        seed: int = 0,
    ) -> None:
        self.class_names = ('background', *scenes.DIGITS)
        self.samples = {'train': train_scenes, 'eval': eval_scenes}
        self.size, self.digit_height, self.seed = size, digit_height, seed

    def split(self, split: Split) -> DrawnScenes:
        return DrawnScenes(split, self.samples[split], self.size, self.digit_height, self.seed)


class DrawnScenes(scenes.Series):
    def read(self, index: int) -> tuple[Image, LabelMap]:
        scene = self.scene(index)
        return scene.image, scene.labels
