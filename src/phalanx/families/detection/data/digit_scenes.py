"""The data set that comes with the package: digit scenes, drawn on demand. Every digit has its box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.data import scenes
from phalanx.data.samples import Image, Split
from phalanx.families.detection.data.source import Objects


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
        digit_height: tuple[float, float] = (20, 52),
        seed: int = 0,
    ) -> None:
        self.class_names = tuple(scenes.DIGITS)
        self.samples = {'train': train_scenes, 'eval': eval_scenes}
        self.size, self.digit_height, self.seed = size, digit_height, seed

    def split(self, split: Split) -> DrawnScenes:
        return DrawnScenes(split, self.samples[split], self.size, self.digit_height, self.seed)


@dataclass(frozen=True)
class DrawnScenes(scenes.Series):
    notes: Mapping[str, int] = field(default_factory=dict)  # nothing is odd about them

    def read(self, index: int) -> tuple[Image, Objects]:
        scene = self.scene(index)
        return scene.image, Objects.plain(scene.boxes, scene.classes)
