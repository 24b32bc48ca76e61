"""The attention head that trains the backbone of PP-OCRv3 along with CTC.

Li et al., Show, Attend and Read: A Simple and Strong Baseline for Irregular Text Recognition, https://arxiv.org/abs/1811.00751.
Layers as in PaddleOCR. Shapes: B batch, C channels, T positions along the line, L characters of the texts with start, end and
padding, D hidden channels, K characters.
"""

import torch
from torch import Tensor, nn

from phalanx.families.recognition.models.blocks import along_the_line
from phalanx.families.recognition.texts import Texts
from phalanx.nn.layers import initialise_as_paddle
from phalanx.nn.stochastic import Dropout


class SARHead(nn.Module):
    """features [B, C, 1, T] and the texts -> logits [B, L, K+2] of the character that follows each one of the texts."""

    def __init__(self, num_classes: int, in_channels: int, *, size: int, dropout: float) -> None:
        super().__init__()
        self.encoder = Encoder(in_channels, size, dropout=dropout)
        self.decoder = Decoder(num_classes, in_channels, size, dropout=dropout)
        initialise_as_paddle(self)

    def forward(self, features: Tensor, texts: Texts) -> Tensor:
        T = features.shape[3]
        filled = (texts.valid_ratios * T).ceil().long().clamp(1, T)
        line = self.encoder(features, filled)
        logits: Tensor = self.decoder(features, filled, line, texts.guide)
        return logits


class Encoder(nn.Module):
    """features [B, C, 1, T], of which the first `filled` [B] positions show the image -> an encoding of the line [B, D]."""

    def __init__(self, in_channels: int, size: int, *, dropout: float) -> None:
        super().__init__()
        self.first = nn.LSTM(in_channels, size, batch_first=True)
        self.dropout = Dropout(dropout)
        self.second = nn.LSTM(size, size, batch_first=True)
        self.out = nn.Linear(size, size)

    def forward(self, features: Tensor, filled: Tensor) -> Tensor:
        read, _ = self.first(along_the_line(features))
        read, _ = self.second(self.dropout(read))  # [B, T, D]
        line: Tensor = self.out(read[torch.arange(len(read), device=read.device), filled - 1])
        return line


class Decoder(nn.Module):
    """Predicts, from the encoded line and the true text up to each character, the character that follows (teacher forcing)."""

    def __init__(self, num_classes: int, in_channels: int, size: int, *, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes + 3, size, padding_idx=num_classes + 2)
        self.rnn = nn.LSTM(size, size, num_layers=2, batch_first=True)
        self.query = nn.Linear(size, size)
        self.key = nn.Conv2d(in_channels, size, 3, padding=1)
        self.score = nn.Linear(size, 1)
        self.classify = nn.Linear(2 * size + in_channels, num_classes + 2)
        self.dropout = Dropout(dropout)
        nn.init.xavier_uniform_(self.embedding.weight)
        nn.init.zeros_(self.embedding.weight[-1])

    def forward(self, features: Tensor, filled: Tensor, line: Tensor, characters: Tensor) -> Tensor:
        state, _ = self.rnn(torch.cat([line[:, None], self.embedding(characters)], dim=1))
        state = state[:, 1:]  # [B, L, D]: no prediction is made after the encoding alone
        glimpse = self._attend(features, filled, state)  # [B, L, C]
        whole = line[:, None].expand_as(state)
        logits: Tensor = self.dropout(self.classify(torch.cat([state, glimpse, whole], dim=2)))  # as in PaddleOCR: last
        return logits

    def _attend(self, features: Tensor, filled: Tensor, state: Tensor) -> Tensor:
        """The mean of the features [B, C, 1, T], weighted for each state [B, L, D] by additive attention to each position."""
        keys = along_the_line(self.key(features))  # [B, T, D]
        joined = self.query(state)[:, :, None] + keys[:, None]  # [B, L, T, D], by far the largest tensor: changed in place
        scores = self.score(joined.tanh_()).squeeze(3)  # [B, L, T]
        beyond = torch.arange(keys.shape[1], device=keys.device) >= filled[:, None]  # [B, T]
        weights = scores.masked_fill(beyond[:, None], -torch.inf).softmax(2)
        glimpse: Tensor = weights @ along_the_line(features)
        return glimpse
