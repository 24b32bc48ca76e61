"""The texts of a batch as the networks and the losses take them: encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Texts:
    """The encoded texts of B images, of an alphabet of K characters (the `num_classes` of the networks).

    For CTC a character is 1 to K, the blank 0. For the attention head (SAR) a character is 0 to K-1, an unknown one K, the
    start and the end of a text K+1, padding K+2.
    """

    ctc: Tensor  # [B, L] int64, padded with 0
    lengths: Tensor  # [B] int64, characters in each row of `ctc`
    sar: Tensor  # [B, L] int64, from start to end, padded
    valid_ratios: Tensor | None = None  # [B] float32, the share of the width that an image fills, from the left; None: all

    def __len__(self) -> int:
        return len(self.ctc)

    def to(self, device: torch.device) -> Self:
        return self._each(lambda part: part.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        ratios = None if self.valid_ratios is None else change(self.valid_ratios)
        return replace(self, ctc=change(self.ctc), lengths=change(self.lengths), sar=change(self.sar), valid_ratios=ratios)
