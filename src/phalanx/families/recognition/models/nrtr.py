"""NRTR head: the transformer decoder that trains the backbone of PP-OCRv4 and PP-OCRv5 mobile along with CTC.

Sheng et al., NRTR: A No-Recurrence Sequence-to-Sequence Model For Scene Text Recognition, https://arxiv.org/abs/1806.00926, of
which PaddleOCR takes the decoder; Vaswani et al., Attention Is All You Need, https://arxiv.org/abs/1706.03762. Shapes: B batch,
C channels, T time steps along the line, L characters of the texts with begin, end and padding, D hidden channels, K characters.
"""

import math

import torch
from torch import Tensor, nn

from phalanx.families.recognition.models.blocks import to_sequence
from phalanx.families.recognition.texts import Texts
from phalanx.nn.layers import initialise_as_paddle
from phalanx.nn.stochastic import Dropout

SPECIAL_CLASSES = 5  # besides the characters: padding, unknown, begin, end, and an unused one, as in PaddleOCR
CHANNELS_PER_HEAD = 32


class NRTRHead(nn.Module):
    """NRTR decoder with teacher forcing: features [B, C, 1, T] and texts -> logits [B, L-1, K+5] of the next characters."""

    def __init__(self, num_classes: int, in_channels: int, *, size: int, depth: int, dropout: float) -> None:
        super().__init__()
        if size % CHANNELS_PER_HEAD:
            raise ValueError(f'the size of the NRTR head must be a multiple of {CHANNELS_PER_HEAD}, got {size}')
        self.enter = nn.Linear(in_channels, size, bias=False)  # before_gtc projection of the features
        self.embedding = nn.Embedding(num_classes + SPECIAL_CLASSES, size, padding_idx=0)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(NRTRBlock(size, dropout=dropout) for _ in range(depth))
        self.classify = nn.Linear(size, num_classes + SPECIAL_CLASSES, bias=False)  # tgt_word_prj
        initialise_as_paddle(self)
        for weight in (self.embedding.weight, self.classify.weight):
            nn.init.normal_(weight, std=size**-0.5)

    def forward(self, features: Tensor, texts: Texts) -> Tensor:
        """Return the logits of the character that follows each one of `texts.guide`."""
        memory = self.enter(to_sequence(features))  # [B, T, D]
        embedded = self.embedding(texts.guide[:, :-1])  # [B, L-1, D]
        # Scaled by sqrt(D), as in Vaswani et al., section 3.4.
        x = self.dropout(embedded * math.sqrt(embedded.shape[2]) + positional_encoding(embedded))
        for block in self.blocks:
            x = block(x, memory)
        logits: Tensor = self.classify(x)
        return logits


class NRTRBlock(nn.Module):
    """Transformer decoder block (post-norm): causal self-attention, cross-attention to `memory` [B, T, D], and an MLP."""

    def __init__(self, size: int, *, dropout: float) -> None:
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)
        self.before = nn.Linear(size, size)  # output projection of self-attention
        self.norm1 = nn.LayerNorm(size)
        self.query = nn.Linear(size, size)
        self.key_value = nn.Linear(size, 2 * size)
        self.seen = nn.Linear(size, size)  # output projection of cross-attention
        self.norm2 = nn.LayerNorm(size)
        self.mlp = nn.Sequential(  # fc1, ReLU, fc2
            nn.Linear(size, 4 * size), nn.ReLU(), Dropout(dropout), nn.Linear(4 * size, size), Dropout(dropout)
        )
        self.norm3 = nn.LayerNorm(size)
        self.dropout1, self.dropout2, self.dropout3 = Dropout(dropout), Dropout(dropout), Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Map x [B, L, D] to the same shape."""
        x = self.norm1(x + self.dropout1(self.before(attention(*self.qkv(x).chunk(3, dim=2), causal=True))))
        x = self.norm2(x + self.dropout2(self.seen(attention(self.query(x), *self.key_value(memory).chunk(2, dim=2)))))
        out: Tensor = self.norm3(x + self.dropout3(self.mlp(x)))
        return out


def attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """Multi-head attention of queries [B, L, D] to keys and values [B, T, D]; `causal` masks later positions."""
    # [B, L, D] -> [B, heads, L, D / heads]
    query, key, value = (each.view(*each.shape[:2], -1, CHANNELS_PER_HEAD).transpose(1, 2) for each in (query, key, value))
    scores = (query * CHANNELS_PER_HEAD**-0.5) @ key.transpose(2, 3)  # [B, heads, L, T]
    if causal:
        later = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    context: Tensor = (scores.softmax(3) @ value).transpose(1, 2).flatten(2)
    return context


def positional_encoding(x: Tensor) -> Tensor:
    """Sinusoidal position embedding [L, D] for x [B, L, D], sine and cosine interleaved."""
    _, L, D = x.shape
    frequencies = torch.exp(torch.arange(0, D, 2, device=x.device, dtype=x.dtype) * (-math.log(10000) / D))
    angles = torch.arange(L, device=x.device, dtype=x.dtype)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
