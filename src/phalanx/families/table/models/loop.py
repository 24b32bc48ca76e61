"""SLANet with its decoding as a loop inside the graph, as ONNX has it. Shapes as in `slanet`; L is `max_steps`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.runtime.table import START

if TYPE_CHECKING:
    from phalanx.families.table.models.slanet import SLANet


class DecodingLoop(nn.Module):
    """Normalised images [B, 3, H, W] -> probabilities [B, L, K] of the tokens and boxes [B, L, 4].

    The loop ends when every table of the batch has ended; what stands behind the end of a table means nothing.
    """

    def __init__(self, network: SLANet, max_steps: int) -> None:
        super().__init__()
        self.network, self.max_steps = network, max_steps

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        head = self.network.head
        pixels = self.network.pixels(images)
        states = self.looped(pixels) if torch.compiler.is_exporting() else self.decoded(pixels)  # [B, L, D]
        return head.structure(states).softmax(-1), head.box(states)

    def decoded(self, pixels: Tensor) -> Tensor:
        """The states as the network itself finds them, zeros behind the end."""
        states = torch.stack(self.network.head.decode(pixels, self.max_steps), dim=1)
        return F.pad(states, (0, 0, 0, self.max_steps - states.shape[1]))

    def looped(self, pixels: Tensor) -> Tensor:
        """The same, in words that torch can export: what a step changes is handed from one to the next."""
        from torch._higher_order_ops import while_loop  # has no public name yet

        head, max_steps = self.network.head, self.max_steps
        keys = head.attention.keys(pixels)
        first = head.beginning(pixels)
        token = pixels.new_full((pixels.shape[0],), START, dtype=torch.long)
        places = torch.arange(max_steps, device=pixels.device)[:, None]  # [L, 1]

        def goes_on(step: Tensor, token: Tensor, has_ended: Tensor, state: Tensor, states: Tensor) -> Tensor:
            return (step < max_steps) & ~has_ended.all()

        def said(step: Tensor, token: Tensor, has_ended: Tensor, state: Tensor, states: Tensor) -> tuple[Tensor, ...]:
            state = head.step(pixels, keys, token, state)
            token = head.structure(state).argmax(1)
            has_ended = has_ended | (token == head.num_tokens - 1)
            return step + 1, token, has_ended, state, states.where(places != step, state[:, None])

        begin = (
            token.new_zeros(()),
            token,
            pixels.new_zeros(pixels.shape[0], dtype=torch.bool),
            first,
            first.new_zeros(pixels.shape[0], max_steps, head.cell.hidden_size),
        )
        states: Tensor = while_loop(goes_on, said, begin)[-1]  # type: ignore[no-untyped-call]
        return states


class TokenChoice(nn.Module):
    """Normalised images [B, 3, H, W] -> the likeliest tokens [B, L], their probabilities [B, L] and boxes [B, L, 4]."""

    def __init__(self, loop: DecodingLoop) -> None:
        super().__init__()
        self.loop = loop

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probabilities, boxes = self.loop(images)
        chances, numbers = probabilities.max(-1)
        return numbers, chances, boxes
