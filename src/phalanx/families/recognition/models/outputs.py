"""What a recognition network is and gives."""

from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.export import NetworkWithDecoding
from phalanx.families.recognition.characters import Characters
from phalanx.runtime.results import Reading


class Outputs(NamedTuple):
    """T positions along the line, L steps of the attention head, K characters, logits not yet soft-maxed.

    `sar`, `nrtr` and `features` are there when the network was given the texts.
    """

    ctc: Tensor  # [B, T, K+1], class 0 the blank
    sar: Tensor | None = None  # [B, L, K+2], the character that follows each one of `Texts.guide`; None without that head
    features: Tensor | None = None  # [B, C, 1, T], of the backbone
    nrtr: Tensor | None = None  # [B, L-1, K+5], the character that follows each one of `Texts.guide`; None as for `sar`


def greedy_ctc(outputs: Outputs) -> tuple[Tensor, Tensor]:
    """Characters [B, T] and their probabilities [B, T].

    Greedy decoding: 0 stands for a blank and for the repetition of the previous position; the other numbers, in order, are the
    text.
    """
    probabilities, numbers = outputs.ctc.softmax(-1).max(-1)
    is_first = F.pad(numbers[:, 1:] != numbers[:, :-1], (1, 0), value=True)
    return numbers * is_first, probabilities


class TextNetwork(nn.Module):
    """What the family expects of a network. The defaults are those of CTC; other networks override them."""

    heads: frozenset[str] = frozenset({'ctc'})
    """The heads that learn: a loss fits a network if it names the same."""
    heights: ClassVar[range] = range(1, 1 << 16)
    """The heights of images that it takes, in pixels."""
    width_step: ClassVar[int] = 1
    """An exported file takes images whose width is a multiple of this."""

    def decode(self, outputs: Any, characters: Characters) -> list[Reading]:
        """The text of each image and its score, from the outputs in evaluation mode."""
        return characters.decode(outputs.ctc)

    def exported(self, *, post_processing: bool) -> tuple[nn.Module, dict[str, str]]:
        """What `phalanx export` writes: a module of normalised images [B, 3, H, W], and the meaning of its outputs by name."""
        if not post_processing:
            return NetworkWithDecoding(self, attrgetter('ctc')), {
                'logits': '[batch, places, characters + 1]: the likeliest of each place, without repetitions and blanks (0)'
            }
        return NetworkWithDecoding(self, greedy_ctc), {
            'numbers': '[batch, places]: characters, from 1 on; 0 where the place says nothing or repeats the one before',
            'probabilities': '[batch, places]: of the likeliest of each place',
        }
