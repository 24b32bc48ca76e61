"""SLANet: says the HTML tokens of a table one after the other, and where each cell is.

Li et al., PP-StructureV2, https://arxiv.org/abs/2210.05391. Layer order and channels as in PaddleOCR. Shapes: B batch,
K tokens of the vocabulary, L tokens of a table, N pixels of the coarsest map, C channels, D hidden.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.table.models.csp_pan import CSPPAN
from phalanx.families.table.models.loop import DecodingLoop, TokenChoice
from phalanx.families.table.output import TableOutput
from phalanx.nn.backbones.pp_lcnet import PPLCNet
from phalanx.nn.layers import initialise_convs
from phalanx.runtime.table import START

LOOK_EVERY = 16  # steps between looks at whether all tables have ended: each look makes a GPU wait


class SLANet(nn.Module):
    """images [B, 3, H, W] -> what they show, as `TableOutput`.

    With the true tokens [B, L], from the start token on, it says what follows each of them. Without, it goes on from its own
    likeliest tokens until every table has ended, at most `max_steps`.
    """

    def __init__(self, num_tokens: int, *, scale: float, channels: int, hidden: int, corners: bool = False) -> None:
        super().__init__()
        self.backbone = PPLCNet(scale)
        self.neck = CSPPAN(self.backbone.channels, channels)
        self.head = SLAHead(channels, hidden, num_tokens, coordinates=8 if corners else 4)
        self.corners = corners
        initialise_convs(self)

    def forward(self, images: Tensor, tokens: Tensor | None = None, max_steps: int = 501) -> TableOutput:
        output: TableOutput = self.head(self.pixels(images), tokens, max_steps)
        return output

    def exported(self, max_steps: int, *, post_processing: bool) -> tuple[nn.Module, dict[str, str]]:
        """What `phalanx export` writes: a module of images, with the greedy decoding inside, and the meaning of its outputs."""
        loop = DecodingLoop(self, max_steps)
        what = '8]: x, y of four corners' if self.corners else '4]: x0, y0, x1, y1'
        boxes = f'[batch, steps, {what} in shares of the picture, where the token is one of `cells`'
        if not post_processing:
            return loop, {
                'probabilities': '[batch, steps, tokens]; the likeliest of each step, up to the first end token',
                'boxes': boxes,
            }
        return TokenChoice(loop), {
            'numbers': '[batch, steps]: tokens, up to the first end token',
            'chances': '[batch, steps]: their probabilities',
            'boxes': boxes,
        }

    def pixels(self, images: Tensor) -> Tensor:
        """What the head sees, the pixels [B, N, C] of the coarsest map."""
        maps: list[Tensor] = self.neck(self.backbone(images))
        return maps[-1].flatten(2).transpose(1, 2)


class SLAHead(nn.Module):
    """The pixels [B, N, C] of a map -> `TableOutput`."""

    def __init__(self, channels: int, hidden: int, num_tokens: int, *, coordinates: int = 4) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.attention = Attention(channels, hidden)
        self.cell = nn.GRUCell(channels + num_tokens, hidden)
        self.structure = nn.Sequential(nn.Linear(hidden, hidden), nn.Linear(hidden, num_tokens))
        self.box = nn.Sequential(nn.Linear(hidden, hidden), nn.Linear(hidden, coordinates), nn.Sigmoid())
        initialise_linears(self)

    def forward(self, pixels: Tensor, tokens: Tensor | None, max_steps: int) -> TableOutput:
        said = self.follow(pixels, tokens) if tokens is not None else self.decode(pixels, max_steps)
        states = torch.stack(said, dim=1)  # [B, L, D]
        return TableOutput(self.structure(states), self.box(states))

    def follow(self, pixels: Tensor, tokens: Tensor) -> list[Tensor]:
        """The states [B, D] after each of the true tokens [B, L]."""
        keys = self.attention.keys(pixels)
        state, states = self.beginning(pixels), []
        for before in tokens.unbind(1):
            state = self.step(pixels, keys, before, state)
            states.append(state)
        return states

    def decode(self, pixels: Tensor, max_steps: int) -> list[Tensor]:
        """The states [B, D] after each of the likeliest tokens, up to that in which the last table of the batch ends."""
        keys = self.attention.keys(pixels)
        state, states = self.beginning(pixels), []
        token = pixels.new_full((len(pixels),), START, dtype=torch.long)
        last = torch.full_like(token, max_steps)  # the step in which each table ends
        for step in range(max_steps):
            state = self.step(pixels, keys, token, state)
            states.append(state)
            token = self.structure(state).argmax(1)
            last = last.where((token != self.num_tokens - 1) | (last < step), step)
            if (step + 1) % LOOK_EVERY == 0 and int(last.max()) <= step:
                break
        return states[: int(last.max()) + 1]

    def beginning(self, pixels: Tensor) -> Tensor:
        return pixels.new_zeros(pixels.shape[0], self.cell.hidden_size)  # len() would fix the batch size of an export

    def step(self, pixels: Tensor, keys: Tensor, token: Tensor, state: Tensor) -> Tensor:
        """The state [B, D] after the token [B] that was said last."""
        seen = self.attention(pixels, keys, state)
        said = F.one_hot(token, self.num_tokens).to(seen.dtype)
        after: Tensor = self.cell(torch.cat([seen, said], dim=1), state)
        return after


class Attention(nn.Module):
    """What a state [B, D] looks at among pixels [B, N, C]: their mean, each weighted by how well it fits the state, [B, C].

    Bahdanau et al., https://arxiv.org/abs/1409.0473.
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.of_pixel = nn.Linear(channels, hidden, bias=False)
        self.of_state = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)

    def keys(self, pixels: Tensor) -> Tensor:
        """The part that is the same in every step, [B, N, D]."""
        keys: Tensor = self.of_pixel(pixels)
        return keys

    def forward(self, pixels: Tensor, keys: Tensor, state: Tensor) -> Tensor:
        scores = self.score(torch.tanh(keys + self.of_state(state)[:, None]))  # [B, N, 1]
        seen: Tensor = (scores.softmax(1) * pixels).sum(1)
        return seen


def initialise_linears(head: nn.Module) -> None:
    """Draws every linear layer of `head` as Paddle does: Xavier uniform, biases zero. Those inside a GRU stay as torch's."""
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def slanet(num_tokens: int, *, scale: float = 1.0, channels: int = 96, hidden: int = 256, corners: bool = False) -> SLANet:
    """SLANet on PP-LCNet.

    `scale`: channels of the backbone as a share of PP-LCNet's; `channels`: of the maps between backbone and head; `hidden`: of
    the state from which the tokens are said. `corners`: the network says the four corners of a cell, not its box, as SLANet_ch.
    """
    return SLANet(num_tokens, scale=scale, channels=channels, hidden=hidden, corners=corners)
