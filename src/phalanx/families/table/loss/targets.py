"""What a loss of tables compares with. Shapes: B tables, L steps: as many as the longest table of the whole step has tokens."""

from typing import NamedTuple

from torch import Tensor


class Targets(NamedTuple):
    """What follows each token."""

    ids: Tensor  # int64 [B, L] tokens
    boxes: Tensor  # float32 [B, L, 4] of the cells, xyxy in shares of width and height, or [B, L, 8] corners
    has_box: Tensor  # bool [B, L]
