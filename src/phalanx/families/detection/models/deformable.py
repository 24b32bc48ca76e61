"""Multi-scale deformable attention: each query reads a few points of the maps near its box.

Zhu et al., Deformable DETR, https://arxiv.org/abs/2010.04159; points per level and discrete sampling: Lv et al., RT-DETRv2,
https://arxiv.org/abs/2407.17140. Shapes: B batch, Q queries, C channels, M heads, P points of all levels.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Sampling = Literal['bilinear', 'discrete']
OFFSET_SCALE = 0.5  # of the side of the box: offsets of 1 reach from its centre to its border


class DeformableAttention(nn.Module):
    """queries [B, Q, C], boxes [B, Q, 4] (centre and size, from 0 to 1), maps -> [B, Q, C].

    `projects`: linear layers around the attention, which D-FINE leaves out.
    """

    scale: Tensor

    def __init__(self, channels: int, heads: int, points: Sequence[int], sampling: Sampling, *, projects: bool) -> None:
        """`points` of each level. Raises ValueError if the heads do not divide the channels."""
        super().__init__()
        if channels % heads:
            raise ValueError(f'{channels} channels cannot be divided among {heads} heads')
        self.heads, self.points, self.sampling = heads, tuple(points), sampling
        total = heads * sum(points)
        self.sampling_offsets, self.attention_weights = nn.Linear(channels, 2 * total), nn.Linear(channels, total)
        self.value_proj = nn.Linear(channels, channels) if projects else nn.Identity()
        self.output_proj = nn.Linear(channels, channels) if projects else nn.Identity()
        self.register_buffer(
            'scale', torch.tensor([OFFSET_SCALE / n for n in points for _ in range(n)])[:, None], persistent=False
        )
        self.initialise()

    def initialise(self) -> None:
        """Spread the points of each head along a direction of its own; all weigh the same."""
        angles = torch.arange(self.heads) * (2 * math.pi / self.heads)
        directions = torch.stack([angles.cos(), angles.sin()], 1)
        directions = directions / directions.abs().amax(1, keepdim=True)  # to the border of a square
        steps = torch.cat([torch.arange(1, count + 1) for count in self.points])
        with torch.no_grad():
            self.sampling_offsets.bias.copy_((directions[:, None] * steps[:, None]).flatten())
        nn.init.zeros_(self.sampling_offsets.weight)
        for layer in (self.value_proj, self.output_proj):
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        for parameter in self.attention_weights.parameters():
            nn.init.zeros_(parameter)
        # Rounding has no gradient, so discrete sampling keeps its offsets.
        self.sampling_offsets.requires_grad_(self.sampling == 'bilinear')

    def values(self, memory: Tensor, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Maps [B * M, C / M, h, w] that the heads read, of the positions `memory` [B, N, C] of maps of `sizes` (h, w)."""
        of_heads = self.value_proj(memory).transpose(1, 2)
        of_heads = of_heads.reshape(memory.shape[0] * self.heads, -1, memory.shape[1])
        levels = of_heads.split([h * w for h, w in sizes], 2)
        return [level.view(*level.shape[:2], *size) for level, size in zip(levels, sizes, strict=True)]

    def forward(self, queries: Tensor, boxes: Tensor, values: Sequence[Tensor]) -> Tensor:
        B, Q, _ = queries.shape
        offsets = self.sampling_offsets(queries).view(B, Q, self.heads, -1, 2)
        weights = self.attention_weights(queries).view(B, Q, self.heads, -1).softmax(-1)
        centres, sides = boxes[:, :, None, None].chunk(2, -1)
        places = centres + offsets * (self.scale.to(offsets.dtype) * sides)  # [B, Q, M, P, 2], from 0 to 1
        places = places.transpose(1, 2).flatten(0, 1)  # [B * M, Q, P, 2]
        sample = sample_bilinear if self.sampling == 'bilinear' else sample_nearest
        samples = [sample(x, at) for x, at in zip(values, places.split(self.points, 2), strict=True)]
        # Weighted sum over the points: [B * M, C / M, Q, P] with [B * M, 1, Q, P].
        summed = (torch.cat(samples, -1) * weights.transpose(1, 2).flatten(0, 1)[:, None]).sum(-1)
        attended: Tensor = self.output_proj(summed.view(B, -1, Q).transpose(1, 2))
        return attended


def sample_bilinear(x: Tensor, places: Tensor) -> Tensor:
    """Values [A, C, Q, n] of x [A, C, h, w] at `places` [A, Q, n, 2] (x, y from 0 to 1); zero beyond the border."""
    return F.grid_sample(x, 2 * places.to(x.dtype) - 1, mode='bilinear', padding_mode='zeros', align_corners=False)


def sample_nearest(x: Tensor, places: Tensor) -> Tensor:
    """Values [A, C, Q, n] of x [A, C, h, w] at the positions `places` * size + 0.5, rounded down and clipped to the map."""
    h, w = x.shape[2:]
    column, row = ((places[..., axis] * count + 0.5).long().clamp(0, count - 1) for axis, count in ((0, w), (1, h)))
    index = (row * w + column).flatten(1)[:, None].expand(-1, x.shape[1], -1)  # [A, C, Q * n]
    return x.flatten(2).gather(2, index).view(*x.shape[:2], *places.shape[1:3])
