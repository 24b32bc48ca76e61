"""What a loss of text detection compares with. Shapes: B batch."""

from typing import NamedTuple

from torch import Tensor


class Targets(NamedTuple):
    """The truth of each pixel, [B, H, W] float32 each."""

    shrink_map: Tensor  # 1 within a text, shrunk, else 0
    shrink_mask: Tensor  # 1 where that is valid, 0 where a text is to be ignored
    threshold_map: Tensor  # how near the border of a text is, from the least threshold to the largest
    threshold_mask: Tensor  # 1 where that is valid: around the border of texts
