"""SLANet: autoregressive prediction of the HTML tokens of a table and the box of each cell.

Li et al., PP-StructureV2, https://arxiv.org/abs/2210.05391. Layer order and channels as in PaddleOCR. Shapes: B batch,
K tokens of the vocabulary, L tokens of a table, N pixels of the coarsest map, C channels, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.table.output import TableOutput
from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.pp_lcnet import pp_lcnet
from phalanx.nn.layers import ConvBNHardswish, DepthwiseSeparable, initialise_as_paddle, initialise_convs, is_exporting
from phalanx.runtime.table import START
from phalanx.system.memory import AsyncCopy

STRIDES = (4, 8, 16, 32)  # of the input maps of the neck
CHECK_EVERY = 16  # steps between checks if all tables have ended: each is a copy to the host


class SLANet(nn.Module):
    """images [B, 3, H, W] -> `TableOutput`.

    With the true tokens [B, L], from the start token on, it predicts the next token after each (teacher forcing). Without, it
    decodes greedily until every table has ended, at most `max_steps`.
    """

    def __init__(self, num_tokens: int, backbone: Backbone, *, channels: int, hidden: int, corners: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.maps = select_maps(backbone, STRIDES, 'slanet')
        self.neck = CSPPAN([backbone.channels[place] for place in self.maps], channels)
        self.head = SLAHead(channels, hidden, num_tokens, coordinates=8 if corners else 4)
        self.corners = corners
        initialise_convs(self.neck)

    def forward(self, images: Tensor, tokens: Tensor | None = None, max_steps: int = 501) -> TableOutput:
        output: TableOutput = self.head(self.pixels(images), tokens, max_steps)
        return output

    def exported(self, max_steps: int, *, post_processing: bool) -> tuple[nn.Module, dict[str, str]]:
        """Return the module for `phalanx export`, with greedy decoding inside, and descriptions of its outputs."""
        loop = DecodingLoop(self, max_steps)
        shape = '8]: x, y of four corners' if self.corners else '4]: x0, y0, x1, y1'
        boxes = f'[batch, steps, {shape} relative to the size of the picture, valid where the token is one of `cells`'
        if not post_processing:
            return loop, {
                'probabilities': '[batch, steps, tokens]; take the argmax of each step, up to the first end token',
                'boxes': boxes,
            }
        return TokenChoice(loop), {
            'numbers': '[batch, steps]: tokens, up to the first end token',
            'chances': '[batch, steps]: their probabilities',
            'boxes': boxes,
        }

    def pixels(self, images: Tensor) -> Tensor:
        """Return the input of the head, the pixels [B, N, C] of the coarsest map."""
        features = self.backbone(images)
        # The head uses the coarsest of the fused maps only.
        maps: list[Tensor] = self.neck([features[place] for place in self.maps])
        return maps[-1].flatten(2).transpose(1, 2)


class CSPPAN(nn.Module):
    """CSP-PAN neck: maps [B, ., h, w], from fine to coarse -> fused maps [B, C, h, w] of the same sizes.

    Yu et al., PP-PicoDet, https://arxiv.org/abs/2111.00902.
    """

    def __init__(self, in_channels: Sequence[int], channels: int, *, kernel_size: int = 5) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(ConvBNHardswish(before, channels, 1) for before in in_channels)
        steps = range(len(in_channels) - 1)
        self.top_down = nn.ModuleList(CSPBlock(2 * channels, channels, kernel_size) for _ in steps)
        self.halve = nn.ModuleList(DepthwiseSeparable(channels, channels, kernel_size, stride=2) for _ in steps)
        self.bottom_up = nn.ModuleList(CSPBlock(2 * channels, channels, kernel_size) for _ in steps)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        # All maps to the same number of channels.
        *finer, coarsest = [conv(x) for conv, x in zip(self.inputs, maps, strict=True)]
        # top-down path (FPN), then bottom-up path (PAN)
        inner = [coarsest]
        for block, x in zip(self.top_down, reversed(finer), strict=True):
            enlarged = F.interpolate(inner[0], x.shape[-2:], mode='nearest')
            inner.insert(0, block(torch.cat([enlarged, x], dim=1)))
        out = inner[:1]
        for halve, block, x in zip(self.halve, self.bottom_up, inner[1:], strict=True):
            out.append(block(torch.cat([halve(out[-1]), x], dim=1)))
        return out


class CSPBlock(nn.Module):
    """CSP block [B, in, h, w] -> [B, out, h, w]: half of the channels bypass the convolutions.

    Wang et al., CSPNet, https://arxiv.org/abs/1911.11929.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        half = out_channels // 2
        self.main = nn.Sequential(
            ConvBNHardswish(in_channels, half, 1), ConvBNHardswish(half, half, 1), DepthwiseSeparable(half, half, kernel_size)
        )
        self.short = ConvBNHardswish(in_channels, half, 1)
        self.out = ConvBNHardswish(out_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.out(torch.cat([self.main(x), self.short(x)], dim=1))
        return mixed


class SLAHead(nn.Module):
    """SLAHead: pixels [B, N, C] -> `TableOutput`, by a GRU cell with attention, a structure head and a loc head."""

    def __init__(self, channels: int, hidden: int, num_tokens: int, *, coordinates: int = 4) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.attention = Attention(channels, hidden)
        self.cell = nn.GRUCell(channels + num_tokens, hidden)
        self.structure = nn.Sequential(nn.Linear(hidden, hidden), nn.Linear(hidden, num_tokens))
        # loc head
        self.box = nn.Sequential(nn.Linear(hidden, hidden), nn.Linear(hidden, coordinates), nn.Sigmoid())
        initialise_as_paddle(self)

    def forward(self, pixels: Tensor, tokens: Tensor | None, max_steps: int) -> TableOutput:
        steps = self.follow(pixels, tokens) if tokens is not None else self.decode(pixels, max_steps)
        # Both heads run once over all steps.
        states = torch.stack(steps, dim=1)  # [B, L, D]
        return TableOutput(self.structure(states), self.box(states))

    def follow(self, pixels: Tensor, tokens: Tensor) -> list[Tensor]:
        """Return the states [B, D] after each of the true tokens [B, L] (teacher forcing)."""
        keys = self.attention.keys(pixels)
        state, states = self.beginning(pixels), []
        for before in tokens.unbind(1):
            # One step per token: the state depends on the one before, so steps cannot run in parallel.
            state = self.step(pixels, keys, before, state)
            states.append(state)
        return states

    def decode(self, pixels: Tensor, max_steps: int) -> list[Tensor]:
        """Return the states [B, D] of greedy decoding, up to about the step in which the last table of the batch ends."""
        keys = self.attention.keys(pixels)
        state, states = self.beginning(pixels), []
        token = pixels.new_full((len(pixels),), START, dtype=torch.long)
        last = torch.full_like(token, max_steps)  # the step in which each table ends
        end, check = max_steps, None
        for step in range(max_steps):
            state = self.step(pixels, keys, token, state)
            states.append(state)
            token = self.structure(state).argmax(1)
            # The first end token counts; tokens after it are not used.
            last = last.where((token != self.num_tokens - 1) | (last < step), step)
            if check is None and (step + 1) % CHECK_EVERY == 0:
                check = AsyncCopy(last.amax()[None])
            # A device answers some steps later: these are cheaper than a wait for it.
            if check is not None and check.is_complete():
                end = int(check.read())
                if end <= step:
                    break
                check = None
        return states[: end + 1]

    def beginning(self, pixels: Tensor) -> Tensor:
        """Return the initial state [B, D], zeros."""
        return pixels.new_zeros(pixels.shape[0], self.cell.hidden_size)  # len() would fix the batch size of an export

    def step(self, pixels: Tensor, keys: Tensor, token: Tensor, state: Tensor) -> Tensor:
        """Return the state [B, D] after the last token [B]."""
        # Attention by the previous state, then a GRU step on the context and the last token.
        context = self.attention(pixels, keys, state)
        one_hot = F.one_hot(token, self.num_tokens).to(context.dtype)
        following: Tensor = self.cell(torch.cat([context, one_hot], dim=1), state)
        return following


class Attention(nn.Module):
    """Additive attention of a state [B, D] to pixels [B, N, C]; returns the context [B, C].

    Bahdanau et al., https://arxiv.org/abs/1409.0473. In PaddleOCR the layers are i2h, h2h and score.
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.of_pixel = nn.Linear(channels, hidden, bias=False)
        self.of_state = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)

    def keys(self, pixels: Tensor) -> Tensor:
        """Return the projected pixels [B, N, D], the same in every step."""
        keys: Tensor = self.of_pixel(pixels)
        return keys

    def forward(self, pixels: Tensor, keys: Tensor, state: Tensor) -> Tensor:
        # score(tanh(i2h(pixel) + h2h(state)))
        scores = self.score(torch.tanh(keys + self.of_state(state)[:, None]))  # [B, N, 1]
        context: Tensor = (scores.softmax(1) * pixels).sum(1)
        return context


class DecodingLoop(nn.Module):
    """Normalised images [B, 3, H, W] -> probabilities [B, L, K] of the tokens and boxes [B, L, 4]; L is `max_steps`.

    The loop is part of the graph, as an ONNX Loop, and ends when every table of the batch has ended; values after the end of a
    table are meaningless.
    """

    def __init__(self, network: SLANet, max_steps: int) -> None:
        super().__init__()
        self.network, self.max_steps = network, max_steps

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        head = self.network.head
        pixels = self.network.pixels(images)
        states = self.trace_loop(pixels) if is_exporting() else self.decode(pixels)  # [B, L, D]
        return head.structure(states).softmax(-1), head.box(states)

    def decode(self, pixels: Tensor) -> Tensor:
        """Return the states of greedy decoding [B, L, D], padded with zeros."""
        states = torch.stack(self.network.head.decode(pixels, self.max_steps), dim=1)
        return F.pad(states, (0, 0, 0, self.max_steps - states.shape[1]))

    def trace_loop(self, pixels: Tensor) -> Tensor:
        """Return the same by `while_loop`, which torch can export: all loop state is passed from step to step."""
        from torch._higher_order_ops import while_loop  # has no public name yet

        head, max_steps = self.network.head, self.max_steps
        keys = head.attention.keys(pixels)
        first = head.beginning(pixels)
        token = pixels.new_full((pixels.shape[0],), START, dtype=torch.long)
        places = torch.arange(max_steps, device=pixels.device)[:, None]  # [L, 1]

        def continues(step: Tensor, token: Tensor, has_ended: Tensor, state: Tensor, states: Tensor) -> Tensor:
            return (step < max_steps) & ~has_ended.all()

        def run_step(step: Tensor, token: Tensor, has_ended: Tensor, state: Tensor, states: Tensor) -> tuple[Tensor, ...]:
            state = head.step(pixels, keys, token, state)
            token = head.structure(state).argmax(1)
            has_ended = has_ended | (token == head.num_tokens - 1)
            return step + 1, token, has_ended, state, states.where(places != step, state[:, None])

        # Initial loop state: step, token, has_ended, state, states.
        begin = (
            token.new_zeros(()),
            token,
            pixels.new_zeros(pixels.shape[0], dtype=torch.bool),
            first,
            first.new_zeros(pixels.shape[0], max_steps, head.cell.hidden_size),
        )
        states: Tensor = while_loop(continues, run_step, begin)[-1]  # type: ignore[no-untyped-call]
        return states


class TokenChoice(nn.Module):
    """Normalised images [B, 3, H, W] -> most probable tokens [B, L], their probabilities [B, L] and boxes [B, L, 4]."""

    def __init__(self, loop: DecodingLoop) -> None:
        super().__init__()
        self.loop = loop

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probabilities, boxes = self.loop(images)
        chances, numbers = probabilities.max(-1)
        return numbers, chances, boxes


def slanet(
    num_tokens: int,
    *,
    backbone: Annotated[partial[Backbone], BACKBONES] = partial(pp_lcnet),
    channels: int = 96,
    hidden: int = 256,
    corners: bool = False,
) -> SLANet:
    """SLANet, published on PP-LCNet.

    `channels`: of the maps of the neck; `hidden`: size of the GRU state. `corners`: predict the four corners of a cell instead
    of its box, as SLANet_ch. Raises ValueError for a backbone without maps of strides 4 to 32.
    """
    return SLANet(num_tokens, backbone(STRIDES), channels=channels, hidden=hidden, corners=corners)
