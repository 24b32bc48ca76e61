"""Base class and outputs of recognition networks."""

from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.export import NetworkWithDecoding
from phalanx.families.recognition.characters import Characters
from phalanx.runtime.results import Reading


class Outputs(NamedTuple):
    """Logits and features of a network: T time steps along the line, L decoder steps, K characters.

    `sar`, `nrtr` and `features` are None unless the network was given the texts.
    """

    ctc: Tensor  # [B, T, K+1], class 0 is the blank
    sar: Tensor | None = None  # [B, L, K+2], prediction of the character after each one of `Texts.guide`; None without the head
    features: Tensor | None = None  # [B, C, 1, T] of the backbone
    nrtr: Tensor | None = None  # [B, L-1, K+5], as `sar`


def greedy_ctc(outputs: Outputs) -> tuple[Tensor, Tensor]:
    """Decode CTC greedily: return classes [B, T] and their probabilities [B, T].

    Class 0 is a blank or a repetition of the previous time step; the other classes, in order, are the text.
    """
    probabilities, numbers = outputs.ctc.softmax(-1).max(-1)
    # Zero out repetitions inside the graph, so that users only drop zeros.
    is_first = F.pad(numbers[:, 1:] != numbers[:, :-1], (1, 0), value=True)
    return numbers * is_first, probabilities


class TextNetwork(nn.Module):
    """Base class of recognition networks, with the defaults of CTC."""

    heads: frozenset[str] = frozenset({'ctc'})
    """Trained heads; the losses must train exactly these."""
    heights: ClassVar[range] = range(1, 1 << 16)
    """Supported heights of images, in pixels."""
    width_step: ClassVar[int] = 1
    """Divisor of the image widths that an exported file takes."""

    def decode(self, outputs: Any, characters: Characters) -> list[Reading]:
        """Return text and confidence of each image from outputs in evaluation mode."""
        return characters.decode(outputs.ctc)

    def exported(self, *, post_processing: bool) -> tuple[nn.Module, dict[str, str]]:
        """Return the module that `phalanx export` writes, which takes normalised images [B, 3, H, W], and descriptions of its
        outputs by name.
        """
        if not post_processing:
            return NetworkWithDecoding(self, attrgetter('ctc')), {
                'logits': '[batch, time steps, characters + 1]: for the text, take the likeliest class of each time step, then '
                'drop repetitions and blanks (0)'
            }
        return NetworkWithDecoding(self, greedy_ctc), {
            'numbers': '[batch, time steps]: characters, counted from 1; 0 for blanks and repetitions',
            'probabilities': '[batch, time steps]: of the likeliest class',
        }
