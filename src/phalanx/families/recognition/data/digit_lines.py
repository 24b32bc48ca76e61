"""Built-in data set: lines of handwritten digits, cropped from digit scenes that are generated on demand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phalanx.data.samples import Draw, GeneratedSource, Split
from phalanx.families.recognition.data.source import TextImage
from phalanx.synthetic import scenes

MARGIN = 0.12  # maximum margin of a crop, as a share of the height of the line


@dataclass(frozen=True, kw_only=True)
class DigitLines:
    """Lines of handwritten digits; the two splits use different digits.

    `digits`: minimum and maximum number of digits per line. `digit_height`: minimum and maximum height of a digit in pixels.
    """

    train_lines: int = 4000
    eval_lines: int = 400
    digits: tuple[int, int] = (2, 5)
    digit_height: tuple[float, float] = (24, 40)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.digits[0] <= self.digits[1]:
            raise ValueError(
                f'digits is the minimum and the maximum per line, at least 1; got {self.digits[0]}, {self.digits[1]}'
            )

    def split(self, split: Split) -> DrawnLines:
        return DrawnLines(split, self.train_lines if split == 'train' else self.eval_lines, self)


@dataclass(frozen=True)
class DrawnLines(GeneratedSource):
    """Source of digit lines; a line is a function of (seed, split, index)."""

    kind = 'digit line'

    options: DigitLines

    def read(self, draw: Draw) -> TextImage:
        """Return a line and its digits."""
        options = self.options
        # Draw a scene of one line, with room for the widest one.
        height = options.digit_height[1]
        scene = scenes.render_scene(
            draw.index,
            self.split,
            size=(int(2.5 * height) + 8, int((1.5 * options.digits[1] + 1) * height) + 8),
            seed=options.seed,
            lines=(1, 1),
            digits_a_line=options.digits,
            singles=(0, 0),
            digit_height=options.digit_height,
        )
        left, top, right, bottom = scene.text_boxes[0]
        # Crop the line with random margins, which are drawn apart from the scene.
        margins = self.rng(options.seed, draw.index, 1).uniform(0, MARGIN * (bottom - top), size=4)
        x0, y0 = (max(0, int(value)) for value in (left - margins[0], top - margins[1]))
        x1, y1 = (int(np.ceil(value)) for value in (right + margins[2], bottom + margins[3]))
        return scene.image[y0:y1, x0:x1], scene.texts[0]
