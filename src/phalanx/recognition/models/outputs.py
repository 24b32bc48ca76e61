"""What a recognition network gives."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F


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


class CtcChoice(CtcOutput):
    """Normalised images [B, 3, H, W] -> characters [B, T] and their probabilities [B, T].

    A character is its number, 0 where there is the blank or what the place before says already: those left, in their order, are
    the text.
    """

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        probabilities, numbers = super().forward(images).softmax(-1).max(-1)
        is_first = F.pad(numbers[:, 1:] != numbers[:, :-1], (1, 0), value=True)
        return numbers * is_first, probabilities
