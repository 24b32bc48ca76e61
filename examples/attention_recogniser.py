"""A recogniser of one's own: a transformer decoder attends to the image, one query for each place of the text.

The parallel attention of SRN (Yu et al., arXiv:2003.12294) and ABINet, without their language models.

phalanx train --plugin examples/attention_recogniser.py crnn_digits --set 'model={name: attention}' loss.name=attention
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.recognition.characters import Characters
from phalanx.families.recognition.models.outputs import TextNetwork
from phalanx.families.recognition.texts import Texts
from phalanx.families.task import Loss, Term
from phalanx.nn.layers import ConvBNReLU
from phalanx.runtime import Reading

END = 0  # characters are 1 to K, as in `Texts.ctc`


class Outputs(NamedTuple):
    logits: Tensor  # [B, L, K+1]


class AttentionRecogniser(TextNetwork):
    """images [B, 3, 32, W] -> Outputs."""

    heads = frozenset({'attention'})
    heights = range(32, 33)
    width_step = 4

    def __init__(self, num_classes: int, *, channels: int, max_length: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvBNReLU(3, channels // 2, 3, stride=2),
            ConvBNReLU(channels // 2, channels, 3, stride=2),
            ConvBNReLU(channels, channels, 3),
        )
        self.queries = nn.Parameter(torch.randn(max_length + 1, channels) / channels**0.5)
        self.attend = nn.TransformerDecoderLayer(channels, 4, 2 * channels, dropout=0.0, batch_first=True)
        self.classify = nn.Linear(channels, num_classes + 1)

    def forward(self, images: Tensor, texts: Texts | None = None) -> Outputs:
        maps = self.body(images).flatten(2).transpose(1, 2)  # [B, N, C]
        columns = torch.arange(maps.shape[1], device=maps.device, dtype=maps.dtype)
        waves = torch.arange(1, maps.shape[2] + 1, device=maps.device, dtype=maps.dtype)
        maps = maps + torch.sin(columns[:, None] / waves)  # where in the image
        return Outputs(self.classify(self.attend(self.queries.expand(images.shape[0], -1, -1), maps)))

    def decode(self, outputs: Outputs, characters: Characters) -> list[Reading]:
        """Up to the first end."""
        probabilities, numbers = outputs.logits.float().softmax(-1).max(-1)
        readings = []
        for row, sure in zip(numbers.tolist(), probabilities.tolist(), strict=True):
            length = row.index(END) if END in row else len(row)
            text = ''.join(characters.characters[number - 1] for number in row[:length])
            readings.append(Reading(text, sum(sure[:length]) / length if length else 0.0))
        return readings

    def exported(self, *, post_processing: bool) -> tuple[nn.Module, dict[str, str]]:
        return Logits(self), {'logits': '[batch, places, characters + 1]: the likeliest of each place, up to the first end (0)'}


class Logits(nn.Module):
    """Images -> logits [B, L, K+1]."""

    def __init__(self, network: AttentionRecogniser) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        outputs: Outputs = self.network(images)
        return outputs.logits


@dataclass(frozen=True, kw_only=True)
class AttentionLoss:
    """The cross-entropy of each character and of the end behind the last one."""

    heads: ClassVar[frozenset[str]] = frozenset({'attention'})

    def __call__(self, outputs: Any, texts: Texts) -> Loss:
        places = outputs.logits.shape[1]
        targets = F.pad(texts.ctc, (0, max(0, places - texts.ctc.shape[1])))[:, :places]  # padding is END
        counts = torch.arange(places, device=targets.device) <= texts.lengths.to(targets.device)[:, None]
        losses = F.cross_entropy(outputs.logits.float().flatten(0, 1), targets.flatten(), reduction='none').view_as(targets)
        return {'attention': Term((losses * counts).sum(), counts.sum())}

    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        return {'attention': (texts.lengths + 1).sum().to(texts.ctc.device, torch.float64)}


def attention(num_classes: int, *, channels: int = 64, max_length: int = 25) -> AttentionRecogniser:
    return AttentionRecogniser(num_classes, channels=channels, max_length=max_length)


PLUGIN = {'recognition': {'models': {'attention': attention}, 'losses': {'attention': AttentionLoss}}}
