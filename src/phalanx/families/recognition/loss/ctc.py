"""Connectionist temporal classification. Shapes: B texts, T places along the line, K characters."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.recognition.models.outputs import Outputs
from phalanx.families.recognition.texts import Texts
from phalanx.families.task import Loss, Term
from phalanx.nn.precision import at_least_float32


@dataclass(frozen=True, kw_only=True)
class CTC:
    """The mean over texts of -log P(text), P being that of all ways to write it along the line; as in PaddleOCR.

    Graves et al., Connectionist Temporal Classification, ICML 2006. A text that does not fit, because the line has fewer places
    than it has characters and blanks between equal ones, costs nothing and counts as a text.
    """

    focal: bool = False  # whether a text counts by (1 - P(text))^2: easy ones less

    heads: ClassVar[frozenset[str]] = frozenset({'ctc'})

    def __call__(self, outputs: Outputs, texts: Texts) -> Loss:
        logits = at_least_float32(outputs.ctc)
        B, T, _ = logits.shape
        losses = F.ctc_loss(
            logits.log_softmax(2).transpose(0, 1),  # [T, B, K+1]
            texts.ctc,
            torch.full_like(texts.lengths, T),  # both lengths on the host
            texts.lengths,
            reduction='none',
            zero_infinity=True,
        )  # [B]
        if self.focal:
            losses = losses * (1 - torch.exp(-losses)).square()
        total = losses.sum()
        if outputs.sar is not None:
            total = total + 0 * outputs.sar.sum()  # data-parallel training waits for a gradient of every parameter
        return {'ctc': Term(total, losses.new_full((), B))}

    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        return {'ctc': torch.full((), float(len(texts)), dtype=torch.float64, device=texts.ctc.device)}
