"""What a recognition network is and gives."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from phalanx.families.recognition.characters import Characters, Reading


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


class TextNetwork(nn.Module):
    """What the family asks of a network. These are the answers of one that is read by CTC; others override them."""

    heads: ClassVar[frozenset[str]] = frozenset({'ctc'})
    """The heads that learn: a loss fits a network if it names the same."""
    heights: ClassVar[range] = range(1, 1 << 16)
    """The heights of images that it takes, in pixels."""

    def decode(self, outputs: Any, characters: Characters) -> list[Reading]:
        """The text of each image and its score, from what the network gives in evaluation mode."""
        return characters.decode(outputs.ctc)

    def exported(self) -> nn.Module:
        """Normalised images [B, 3, H, W] -> logits [B, T, K+1], as `phalanx export` writes them."""
        return CtcOutput(self)
