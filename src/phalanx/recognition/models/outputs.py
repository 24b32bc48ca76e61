"""What a recognition network gives."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Outputs(NamedTuple):
    """T places along the line, L steps of the attention head, K characters, logits not yet soft-maxed.

    `sar` and `features` are there when the network was given the texts.
    """

    ctc: Tensor  # [B, T, K+1], class 0 the blank
    sar: Tensor | None = None  # [B, L, K+2], the character after each one of `Texts.sar`; None in networks without that head
    features: Tensor | None = None  # [B, C, 1, T], of the backbone
