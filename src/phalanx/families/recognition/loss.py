"""Losses of recognition: called with the outputs of a network and the texts, they give named Terms.

Shapes: B texts, T places along the line, L steps, K characters.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

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


@dataclass(frozen=True, kw_only=True)
class SAR:
    """The mean cross-entropy over the characters of all texts and their ends; as in PaddleOCR.

    Raises ValueError for a network without an attention head.
    """

    heads: ClassVar[frozenset[str]] = frozenset({'ctc', 'sar'})

    def __call__(self, outputs: Outputs, texts: Texts) -> Loss:
        if outputs.sar is None:
            raise ValueError('the losses sar and multi need an attention head, which this network does not have; use ctc')
        logits = at_least_float32(outputs.sar)[:, :-1]  # [B, L-1, K+2]
        targets = texts.guide[:, 1:]
        padding = logits.shape[2]  # the number after those that can be predicted
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=padding, reduction='sum')
        return {'sar': Term(total, self.weights(texts, padding - 2)['sar'])}

    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        return {'sar': (texts.guide[:, 1:] != num_characters + 2).sum(dtype=torch.float64)}


PADDING = 0


@dataclass(frozen=True, kw_only=True)
class NRTR:
    """The mean cross-entropy over the characters of all texts and their ends; as in PaddleOCR.

    Raises ValueError for a network without an NRTR head.
    """

    smoothing: float = 0.1  # the share of a character that all others have of its target

    heads: ClassVar[frozenset[str]] = frozenset({'nrtr'})

    def __call__(self, outputs: Outputs, texts: Texts) -> Loss:
        if outputs.nrtr is None:
            raise ValueError('the loss nrtr trains an NRTR head, which this network does not have')
        logits = at_least_float32(outputs.nrtr).flatten(0, 1)  # [B (L-1), K+5]
        total = F.cross_entropy(
            logits,
            texts.guide[:, 1:].flatten(),
            ignore_index=PADDING,
            reduction='sum',
            label_smoothing=self.smoothing * logits.shape[1] / (logits.shape[1] - 1),  # torch's is shared with the true one
        )
        return {'nrtr': Term(total, self.weights(texts, 0)['nrtr'])}

    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        return {'nrtr': (texts.guide[:, 1:] != PADDING).sum(dtype=torch.float64)}


@dataclass(frozen=True, kw_only=True)
class Multi:
    """CTC and the cross-entropy of the attention head, each times its weight; PaddleOCR's MultiLoss."""

    ctc_weight: float = 1.0
    sar_weight: float = 1.0
    focal: bool = False  # of CTC

    heads: ClassVar[frozenset[str]] = frozenset({'ctc', 'sar'})

    def __call__(self, outputs: Outputs, texts: Texts) -> Loss:
        ctc = CTC(focal=self.focal)(outputs, texts)['ctc']
        sar = SAR()(outputs, texts)['sar']
        return {'ctc': Term(ctc.total * self.ctc_weight, ctc.weight), 'sar': Term(sar.total * self.sar_weight, sar.weight)}

    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        return CTC().weights(texts, num_characters) | SAR().weights(texts, num_characters)


class TextLoss(Protocol):
    """What every loss of recognition is."""

    heads: ClassVar[frozenset[str]]  # those of the networks that it trains, see `TextNetwork`

    def __call__(self, outputs: Outputs, texts: Texts) -> Loss: ...
    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        """The weights [] (float64) of its Terms, which the texts alone determine."""


LOSSES: dict[str, type[TextLoss]] = {'ctc': CTC, 'sar': SAR, 'nrtr': NRTR, 'multi': Multi}
