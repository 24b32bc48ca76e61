"""The texts of a batch as the networks and the losses take them: encoded."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from phalanx.data.batch import Tensors


@dataclass(frozen=True)
class Texts(Tensors):
    """The encoded texts of B images, of an alphabet of K characters (the `num_classes` of the networks).

    For CTC a character is 1 to K, the blank 0. `guide` is for the attention head that learns along with it. For SAR a character
    is 0 to K-1, an unknown one K, the start and the end of a text K+1, padding K+2. For NRTR it is 4 to K+3, padding 0, an
    unknown one 1, the start of a text 2, its end 3.
    """

    ctc: Tensor  # [B, L] int64, padded with 0
    lengths: Tensor  # [B] int64, characters in each row of `ctc`
    guide: Tensor  # [B, L] int64, from start to end, padded
    valid_ratios: Tensor  # [B] float32, the share of the width that an image fills, from the left

    def __len__(self) -> int:
        return len(self.ctc)

    def to(self, device: torch.device) -> Self:
        """The lengths stay on the host, where torch's CTC wants them, wherever it computes."""
        return replace(super().to(device), lengths=self.lengths)

    def __getitem__(self, part: slice) -> Self:
        """Those of some images, so that a batch is split like its tensors."""
        return type(self)(*(field[part] for field in vars(self).values()))
