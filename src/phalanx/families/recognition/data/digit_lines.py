"""The data set that comes with the package: lines of handwritten digits, cut out of digit scenes that are drawn on demand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phalanx.data import scenes
from phalanx.data.samples import Draw, Drawn, Split
from phalanx.families.recognition.data.source import TextImage

MARGIN = 0.12  # of the height of a line, how far around it the cut goes at most


class DigitLines:
    """Numbers of as many digits as `digits` says, the fewest and the most; the two splits use different handwritten digits.

    `digit_height`: the smallest and the largest digit, in pixels.
    """

    def __init__(
        self,
        *,
        train_lines: int = 4000,
        eval_lines: int = 400,
        digits: tuple[int, int] = (2, 5),
        digit_height: tuple[float, float] = (24, 40),
        seed: int = 0,
    ) -> None:
        if not 1 <= digits[0] <= digits[1]:
            raise ValueError(f'digits is the fewest and the most of a line, got {digits[0]}, {digits[1]}')
        self.lines = {'train': train_lines, 'eval': eval_lines}
        self.digits, self.digit_height, self.seed = digits, digit_height, seed

    def split(self, split: Split) -> DrawnLines:
        return DrawnLines(split, self.lines[split], self.digits, self.digit_height, self.seed)


@dataclass(frozen=True)
class DrawnLines(Drawn):
    kind = 'digit line'

    digits: tuple[int, int]
    digit_height: tuple[float, float]
    seed: int

    def read(self, draw: Draw) -> TextImage:
        height = self.digit_height[1]
        size = (int(2.5 * height) + 8, int((1.5 * self.digits[1] + 1) * height) + 8)  # has room for the widest line
        scene = scenes.scene(
            draw.index,
            self.split,
            size=size,
            seed=self.seed,
            lines=(1, 1),
            digits_a_line=self.digits,
            singles=(0, 0),
            digit_height=self.digit_height,
        )
        left, top, right, bottom = scene.text_boxes[0]
        cut = self.rng(self.seed, draw.index, 1)
        margins = cut.uniform(0, MARGIN * (bottom - top), size=4)
        x0, y0 = (max(0, int(value)) for value in (left - margins[0], top - margins[1]))
        x1, y1 = (int(np.ceil(value)) for value in (right + margins[2], bottom + margins[3]))
        return scene.image[y0:y1, x0:x1], scene.texts[0]
