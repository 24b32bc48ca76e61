"""Output of a table network. Shapes: B tables, L tokens of a table, K tokens of the vocabulary."""

from typing import NamedTuple

from torch import Tensor


class TableOutput(NamedTuple):
    """Logits of the next token after each token, and the box of its cell."""

    logits: Tensor  # [B, L, K]
    boxes: Tensor  # [B, L, 4] xyxy, or [B, L, 8] corners, relative to width and height; meaningful where the token is a cell
