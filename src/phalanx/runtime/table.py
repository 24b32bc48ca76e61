"""Images of tables to structures. Shapes: L decoding steps, K tokens."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.runtime.family import Family
from phalanx.runtime.prepare import Floats, Image, fit_square, normalise, pad_with_zeros
from phalanx.runtime.results import Prediction

START = 0  # number of the start token; also the padding of shorter sequences


class Table(Family):
    """Pre- and post-processing of a table network."""

    def prepare(self, image: Image) -> Floats:
        side = self.preparation['side']
        return pad_with_zeros(normalise(fit_square(image, side), self.preparation), side, side)

    def prediction(self, outputs: Mapping[str, Any], image: Image) -> Prediction:
        if 'numbers' in outputs:  # argmax in the graph
            numbers, chances = outputs['numbers'], outputs['chances']
        else:
            numbers, chances = outputs['probabilities'].argmax(1), outputs['probabilities'].max(1)
        size, reading = (image.shape[0], image.shape[1]), self.reading
        if reading.get('relative_to') == 'square':  # SLANet_plus: to the padded input
            size = max(size), max(size)
        boxes = outputs['boxes'] if reading.get('locates_cells', True) else None
        return decode_structure(numbers, chances, boxes, size, reading['tokens'], reading['cells'])


def decode_structure(
    numbers: npt.NDArray[np.int64],
    chances: Floats,
    boxes: Floats | None,
    size: tuple[int, int],
    tokens: Sequence[str],
    cells: Collection[str],
) -> Prediction:
    """Structure from the best token `numbers` [L] up to the end token, with cell boxes in pixels of the image.

    `chances` [L]: probabilities of the tokens; `boxes` [L, 4] relative to width and height, or [L, 8] corners, which become
    their bounding boxes, or None; `size`: (height, width); the last of `tokens` is the end token; `cells`: tokens for a
    cell.
    """
    decoded = steps(numbers.tolist(), len(tokens) - 1)
    structure = tuple(tokens[numbers[step]] for step in decoded)
    of_cells = [step for step, token in zip(decoded, structure, strict=True) if token in cells]
    H, W = size
    score = float(chances[decoded].mean()) if decoded else 0.0
    if boxes is None:
        return Prediction(structure, None, score)
    points = boxes[of_cells].reshape(len(of_cells), boxes.shape[-1] // 2, 2) * np.array([W, H], np.float32)
    # Corners: the result has bounding boxes.
    if points.shape[1] == 4:
        points = np.stack([points.min(1), points.max(1)], 1)
    return Prediction(structure, points.reshape(-1, 4), score)


def steps(numbers: Sequence[int], end: int) -> list[int]:
    """Steps of the tokens before the end token; start tokens are dropped.

    An end token at the first step is dropped too and ends nothing, as in the original.
    """
    result = []
    for place, number in enumerate(numbers):
        if number == end and place > 0:
            break
        if number not in (START, end):
            result.append(place)
    return result
