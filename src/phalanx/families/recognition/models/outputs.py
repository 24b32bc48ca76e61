"""What a recognition network gives."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn


class Outputs(NamedTuple):
    """T places along the line, L steps of the attention head, K characters, logits not yet soft-maxed.

    `sar` and `features` are there when the network was given the texts.
    """

    ctc: Tensor  # [B, T, K+1], class 0 the blank
    sar: Tensor | None = None  # [B, L, K+2], the character after each one of `Texts.sar`; None in networks without that head
    features: Tensor | None = None  # [B, C, 1, T], of the backbone


class CtcOutput(nn.Module):
    """Normalised images [B, 3, H, W] -> CTC logits [B, T, K+1]: a network as others run it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        outputs: Outputs = self.network(images)
        return outputs.ctc
