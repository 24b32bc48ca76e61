"""SAR head: the attention decoder that trains the backbone of PP-OCRv3 along with CTC.

Li et al., Show, Attend and Read: A Simple and Strong Baseline for Irregular Text Recognition, https://arxiv.org/abs/1811.00751.
Layers as in PaddleOCR. Shapes: B batch, C channels, T time steps along the line, L characters of the texts with begin, end and
padding, D hidden channels, K characters.
"""

import torch
from torch import Tensor, nn

from phalanx.families.recognition.models.blocks import to_sequence
from phalanx.families.recognition.texts import Texts
from phalanx.nn.layers import initialise_as_paddle
from phalanx.nn.stochastic import Dropout


class SARHead(nn.Module):
    """SAR with teacher forcing: features [B, C, 1, T] and texts -> logits [B, L, K+2] of the next characters."""

    def __init__(self, num_classes: int, in_channels: int, *, size: int, dropout: float) -> None:
        super().__init__()
        self.encoder = SAREncoder(in_channels, size, dropout=dropout)
        self.decoder = SARDecoder(num_classes, in_channels, size, dropout=dropout)
        initialise_as_paddle(self)

    def forward(self, features: Tensor, texts: Texts) -> Tensor:
        """Return the logits of the character that follows each one of `texts.guide`."""
        T = features.shape[3]
        valid_steps = (texts.valid_ratios * T).ceil().long().clamp(1, T)  # [B], without the padding of the image
        holistic = self.encoder(features, valid_steps)
        logits: Tensor = self.decoder(features, valid_steps, holistic, texts.guide)
        return logits


class SAREncoder(nn.Module):
    """LSTM encoder: features [B, C, 1, T], the first `valid_steps` [B] of them valid -> holistic feature of the line [B, D]."""

    def __init__(self, in_channels: int, size: int, *, dropout: float) -> None:
        super().__init__()
        # Two modules instead of one with two layers, because dropout between them is Phalanx's own.
        self.first = nn.LSTM(in_channels, size, batch_first=True)
        self.dropout = Dropout(dropout)
        self.second = nn.LSTM(size, size, batch_first=True)
        self.out = nn.Linear(size, size)

    def forward(self, features: Tensor, valid_steps: Tensor) -> Tensor:
        """Return the projected state of the last valid time step."""
        states, _ = self.first(to_sequence(features))
        states, _ = self.second(self.dropout(states))  # [B, T, D]
        holistic: Tensor = self.out(states[torch.arange(len(states), device=states.device), valid_steps - 1])
        return holistic


class SARDecoder(nn.Module):
    """LSTM decoder with 2D attention: predicts the next character from the holistic feature and the true text so far."""

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

    def forward(self, features: Tensor, valid_steps: Tensor, holistic: Tensor, characters: Tensor) -> Tensor:
        """Return logits [B, L, K+2] after each of `characters` [B, L]."""
        state, _ = self.rnn(torch.cat([holistic[:, None], self.embedding(characters)], dim=1))
        # Step 0 has the holistic feature as its input, step i character i - 1 of the guide.
        state = state[:, 1:]  # [B, L, D]: nothing is predicted after the holistic feature alone
        glimpse = self._attend(features, valid_steps, state)  # [B, L, C]
        joined = torch.cat([state, glimpse, holistic[:, None].expand_as(state)], dim=2)
        logits: Tensor = self.dropout(self.classify(joined))  # dropout of the logits, as in PaddleOCR
        return logits

    def _attend(self, features: Tensor, valid_steps: Tensor, state: Tensor) -> Tensor:
        """Return the glimpse [B, L, C]: additive attention of each state [B, L, D] to features [B, C, 1, T]."""
        # Score of a time step for a state: score(tanh(query(state) + key(features))).
        keys = to_sequence(self.key(features))  # [B, T, D]
        joined = self.query(state)[:, :, None] + keys[:, None]  # [B, L, T, D], by far the largest tensor, hence tanh_
        scores = self.score(joined.tanh_()).squeeze(3)  # [B, L, T]
        is_padding = torch.arange(keys.shape[1], device=keys.device) >= valid_steps[:, None]  # [B, T]
        weights = scores.masked_fill(is_padding[:, None], -torch.inf).softmax(2)
        glimpse: Tensor = weights @ to_sequence(features)
        return glimpse
