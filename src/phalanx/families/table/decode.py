"""What a network said, read out. Shapes: B batch, L steps, K tokens of the vocabulary."""

from collections.abc import Sequence

from torch import Tensor

from phalanx.families.table.tokens import CELLS, Vocabulary
from phalanx.runtime.results import Prediction
from phalanx.runtime.table import said


def predictions(
    vocabulary: Vocabulary, probabilities: Tensor, boxes: Tensor, sizes: Sequence[tuple[int, int]]
) -> list[Prediction]:
    """The likeliest tokens up to the end token, and the boxes of their cells in pixels of the images.

    `probabilities` [B, L, K]; `boxes` [B, L, 4] in shares of width and height; `sizes`: (height, width) of each image.
    """
    most, ids = (part.cpu().numpy() for part in probabilities.max(-1))
    shares = boxes.float().cpu().numpy()
    return [said(*table, vocabulary.tokens, CELLS) for table in zip(ids, most, shares, sizes, strict=True)]
