"""Encoded texts of a batch, the input of networks and losses."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from torch import Tensor

from phalanx.data.batch import Tensors


class Label(NamedTuple):
    """The true text of an image, for the metric."""

    text: str  # without characters that the dictionary lacks
    unknown: int = 0  # number of those characters


@dataclass(frozen=True)
class Texts(Tensors):
    """Encoded texts of B images, in a dictionary of K characters (the `num_classes` of the networks).

    CTC: characters are 1 to K, the blank is 0. `guide` is the target of the attention head that is trained along with CTC
    (guided training of CTC, GTC). SAR: characters are 0 to K-1, unknown K, begin and end K+1, padding K+2. NRTR: characters are
    4 to K+3, padding 0, unknown 1, begin 2, end 3.
    """

    on_host = frozenset({'lengths'})  # as torch's CTC loss takes them

    ctc: Tensor  # [B, L] int64, padded with 0
    lengths: Tensor  # [B] int64, target lengths of `ctc`
    guide: Tensor  # [B, L] int64: begin, characters, end, padding
    valid_ratios: Tensor  # [B] float32, share of the width that the line fills, from the left

    def __len__(self) -> int:
        return len(self.ctc)

    def __getitem__(self, part: slice) -> Self:
        """Return the texts of some images, so that micro-batches split texts as they split tensors."""
        return type(self)(*(field[part] for field in vars(self).values()))
