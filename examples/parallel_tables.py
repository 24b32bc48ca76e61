"""A table network of one's own: all tokens at once, from queries that attend to the image, without SLANet's recurrent head.

phalanx train --plugin examples/parallel_tables.py slanet_rendered --set 'model={name: parallel_tables}'
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from phalanx.families.table.output import TableOutput
from phalanx.nn.layers import ConvBNReLU


class ParallelTables(nn.Module):
    """images [B, 3, H, W] -> TableOutput; true tokens only say how many to give."""

    def __init__(self, num_tokens: int, *, channels: int, longest: int) -> None:
        super().__init__()
        widths = (3, channels // 4, channels // 2, channels)
        self.body = nn.Sequential(*(ConvBNReLU(a, b, 3, stride=2) for a, b in itertools.pairwise(widths)))
        self.queries = nn.Parameter(torch.randn(longest, channels) / channels**0.5)
        self.attend = nn.TransformerDecoderLayer(channels, 4, 2 * channels, dropout=0.0, batch_first=True)
        self.structure, self.box = nn.Linear(channels, num_tokens), nn.Linear(channels, 4)

    def forward(self, images: Tensor, tokens: Tensor | None = None, max_steps: int = 501) -> TableOutput:
        steps = min(max_steps if tokens is None else tokens.shape[1], len(self.queries))
        maps = self.body(images).flatten(2).transpose(1, 2)
        states = self.attend(self.queries[:steps].expand(images.shape[0], -1, -1), maps)
        return TableOutput(self.structure(states), self.box(states).sigmoid())

    def exported(self, max_steps: int, *, post_processing: bool) -> tuple[nn.Module, dict[str, str]]:
        return Probabilities(self, max_steps), {
            'probabilities': '[batch, steps, tokens]: the likeliest of each step, up to the first end',
            'boxes': '[batch, steps, 4] in shares of the picture',
        }


class Probabilities(nn.Module):
    """Images -> probabilities [B, L, K] and boxes [B, L, 4] of `max_steps` tokens."""

    def __init__(self, network: ParallelTables, max_steps: int) -> None:
        super().__init__()
        self.network, self.max_steps = network, max_steps

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        output: TableOutput = self.network(images, None, self.max_steps)
        return output.logits.softmax(-1), output.boxes


def parallel_tables(num_tokens: int, *, channels: int = 64, longest: int = 501) -> ParallelTables:
    return ParallelTables(num_tokens, channels=channels, longest=longest)


PLUGIN = {'table': {'models': {'parallel_tables': parallel_tables}}}
