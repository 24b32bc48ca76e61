"""Transformer encoder over the positions of a map, before the neck of PP-YOLOE-SOD.

Vaswani et al., Attention Is All You Need, https://arxiv.org/abs/1706.03762. Layer order, dropout and initial weights as in
PaddleDetection. Shapes: B batch, C channels, N = h * w positions.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.stochastic import Dropout

HEADS, HIDDEN, DROPOUT = 4, 2048, 0.1
TEMPERATURE = 10000.0  # of the sinusoidal position embedding


class TransformerEncoder(nn.Module):
    """Self-attention over all positions: [B, C, h, w] -> [B, C, h, w]. C is a multiple of 4."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(channels) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[2:]
        tokens, embedding = x.flatten(2).transpose(1, 2), position_embedding(h, w, x.shape[1], x.device).to(x.dtype)
        for layer in self.layers:
            tokens = layer(tokens, embedding)
        return tokens.transpose(1, 2).reshape(x.shape)


def position_embedding(h: int, w: int, channels: int, device: torch.device) -> Tensor:
    """Sinusoidal 2D position embedding [N, C].

    The coordinates of position n are n // h and n % h, as in PaddleDetection: on a square map, row and column.
    """
    positions = torch.arange(h * w, device=device)
    quarter = torch.arange(channels // 4, device=device, dtype=torch.float32) / (channels // 4)
    frequencies = TEMPERATURE**-quarter
    # A quarter of the channels each: sine and cosine of both coordinates.
    angles = [coordinate.float()[:, None] * frequencies for coordinate in (positions // h, positions % h)]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], 1)


class EncoderLayer(nn.Module):
    """Encoder layer: tokens [B, N, C], position embedding [N, C] -> [B, N, C]; `widen` and `narrow` are fc1 and fc2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attention = Attention(channels)
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.widen, self.narrow = nn.Linear(channels, HIDDEN), nn.Linear(HIDDEN, channels)
        self.drop1, self.drop2, self.drop_hidden = (Dropout(DROPOUT) for _ in range(3))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        # Post-norm: each sum is normalised after the residual connection.
        x = self.norm1(x + self.drop1(self.attention(x, embedding)))
        mixed: Tensor = self.norm2(x + self.drop2(self.narrow(self.drop_hidden(F.gelu(self.widen(x))))))
        return mixed


class Attention(nn.Module):
    """Multi-head attention: tokens [B, N, C], position embedding [N, C] (for queries and keys only) -> [B, N, C]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.look = nn.Linear(channels, 3 * channels)  # the qkv projection
        self.out = nn.Linear(channels, channels)
        self.drop = Dropout(DROPOUT)
        for layer in (self.look, self.out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        B, N, C = x.shape
        weight, bias = self.look.weight, self.look.bias
        # Queries and keys get the position embedding, values do not: two products with parts of one weight.
        queries, keys = F.linear(x + embedding, weight[: 2 * C], bias[: 2 * C]).view(B, N, 2, HEADS, -1).permute(2, 0, 3, 1, 4)
        values = F.linear(x, weight[2 * C :], bias[2 * C :]).view(B, N, HEADS, -1).transpose(1, 2)
        attention = self.drop((queries @ keys.transpose(2, 3) * (C // HEADS) ** -0.5).softmax(-1))  # [B, HEADS, N, N]
        mixed: Tensor = self.out((attention @ values).transpose(1, 2).reshape(B, N, C))
        return mixed
