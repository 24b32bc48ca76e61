"""What networks for text detection give. Shapes: B batch."""

from typing import NamedTuple

from torch import Tensor


class Maps(NamedTuple):
    """Probabilities of each pixel [B, 1, H, W], at least float32. In evaluation there is the first one alone."""

    shrink: Tensor  # that it is within a text, shrunk
    threshold: Tensor | None = None  # above which `shrink` must be for that
    binary: Tensor | None = None  # whether it is above, as a steep but smooth function of both


class RefinedMaps(NamedTuple):
    """The same in training, of a head that has looked at the text a second time, closely.

    `shrink` is what it then saw; `binary` comes from the first, coarse look, which has its own term in the loss.
    """

    shrink: Tensor
    threshold: Tensor
    binary: Tensor
