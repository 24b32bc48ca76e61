"""What a network said, read out. Shapes: B batch, L steps, K tokens of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from phalanx.families.table.annotation import Prediction
from phalanx.families.table.tokens import CELLS, Vocabulary


def predictions(
    vocabulary: Vocabulary, probabilities: Tensor, boxes: Tensor, sizes: Sequence[tuple[int, int]]
) -> list[Prediction]:
    """The likeliest tokens up to the end token, and the boxes of their cells in pixels of the images.

    `probabilities` [B, L, K]; `boxes` [B, L, 4] in shares of width and height; `sizes`: (height, width) of each image.
    """
    most, ids = (part.cpu().numpy() for part in probabilities.max(-1))
    shares = boxes.float().cpu().numpy()
    found = []
    for of_table, chances, places, (H, W) in zip(ids, most, shares, sizes, strict=True):
        tokens, steps = vocabulary.decode(of_table.tolist())
        cells = [step for token, step in zip(tokens, steps, strict=True) if token in CELLS]
        score = float(chances[steps].mean()) if steps else 0.0
        found.append(Prediction(tokens, places[cells] * np.array([W, H, W, H], np.float32), score))
    return found
