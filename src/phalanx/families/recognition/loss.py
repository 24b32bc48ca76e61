"""Losses of recognition: functions of the outputs of a network and the texts that return named Terms.

Shapes: B texts, T time steps along the line, L decoder steps, K characters.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.outputs import Shape, check_fields
from phalanx.families.recognition.models.outputs import Outputs
from phalanx.families.recognition.texts import Texts
from phalanx.families.task import Loss, Term
from phalanx.nn.precision import at_least_float32


@dataclass(frozen=True, kw_only=True)
class CTC:
    """CTC loss: the mean over texts of -log P(text), summed over all alignments of the text with the line; as in PaddleOCR.

    Graves et al., Connectionist Temporal Classification, ICML 2006. A text that needs more time steps than the line has (one
    per character, and a blank between equal neighbours) has loss 0 and still counts as a text.
    """

    focal: bool = False  # weight each text by (1 - P(text))^2, as focal loss does

    heads: ClassVar[frozenset[str]] = frozenset({'ctc'})

    def __call__(self, outputs: Outputs, texts: Texts) -> Loss:
        logits = at_least_float32(outputs.ctc)
        B, T, _ = logits.shape
        losses = F.ctc_loss(
            logits.log_softmax(2).transpose(0, 1),  # [T, B, K+1]
            texts.ctc,
            # Lengths as numbers: torch expects tensors of them on the host, and on the device while operations are counted.
            (T,) * B,  # type: ignore[arg-type]
            tuple(texts.lengths.tolist()),  # type: ignore[arg-type]
            reduction='none',
            zero_infinity=True,
        )  # [B]
        if self.focal:
            # Focal: P(text) = exp(-loss).
            losses = losses * (1 - torch.exp(-losses)).square()
        total = losses.sum()
        if outputs.sar is not None:
            total = total + 0 * outputs.sar.sum()  # DDP waits for the gradient of every parameter, including unused heads
        return {'ctc': Term(total, losses.new_full((), B))}

    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        return {'ctc': torch.full((), float(len(texts)), dtype=torch.float64, device=texts.ctc.device)}


@dataclass(frozen=True, kw_only=True)
class SAR:
    """Cross-entropy of the SAR head, averaged over all characters and end symbols; as in PaddleOCR.

    Raises ValueError for a network without that head.
    """

    heads: ClassVar[frozenset[str]] = frozenset({'ctc', 'sar'})

    def __call__(self, outputs: Outputs, texts: Texts) -> Loss:
        if outputs.sar is None:
            raise ValueError('the losses sar and multi need a SAR head, which this network does not have; use ctc')
        logits = at_least_float32(outputs.sar)[:, :-1]  # [B, L-1, K+2]
        # Teacher forcing: after character i of the guide comes character i + 1.
        targets = texts.guide[:, 1:]
        padding = logits.shape[2]  # first index after the predicted classes
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=padding, reduction='sum')
        return {'sar': Term(total, self.weights(texts, padding - 2)['sar'])}

    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        return {'sar': (texts.guide[:, 1:] != num_characters + 2).sum(dtype=torch.float64)}


PADDING = 0


@dataclass(frozen=True, kw_only=True)
class NRTR:
    """Cross-entropy of the NRTR head with label smoothing, averaged over all characters and end symbols; as in PaddleOCR.

    Raises ValueError for a network without that head.
    """

    smoothing: float = 0.1  # target probability that the wrong classes share

    heads: ClassVar[frozenset[str]] = frozenset({'nrtr'})

    def __call__(self, outputs: Outputs, texts: Texts) -> Loss:
        if outputs.nrtr is None:
            raise ValueError('the loss nrtr needs an NRTR head, which this network does not have; use ctc')
        logits = at_least_float32(outputs.nrtr).flatten(0, 1)  # [B (L-1), K+5]
        total = F.cross_entropy(
            logits,
            texts.guide[:, 1:].flatten(),
            ignore_index=PADDING,
            reduction='sum',
            # PaddleOCR spreads `smoothing` over the wrong classes, torch over all classes.
            label_smoothing=self.smoothing * logits.shape[1] / (logits.shape[1] - 1),
        )
        return {'nrtr': Term(total, self.weights(texts, 0)['nrtr'])}

    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        return {'nrtr': (texts.guide[:, 1:] != PADDING).sum(dtype=torch.float64)}


@dataclass(frozen=True, kw_only=True)
class Multi:
    """Weighted sum of the CTC and SAR losses; PaddleOCR's MultiLoss."""

    ctc_weight: float = 1.0
    sar_weight: float = 1.0
    focal: bool = False  # see CTC

    heads: ClassVar[frozenset[str]] = frozenset({'ctc', 'sar'})

    def __call__(self, outputs: Outputs, texts: Texts) -> Loss:
        ctc = CTC(focal=self.focal)(outputs, texts)['ctc']
        sar = SAR()(outputs, texts)['sar']
        return {'ctc': Term(ctc.total * self.ctc_weight, ctc.weight), 'sar': Term(sar.total * self.sar_weight, sar.weight)}

    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        return CTC().weights(texts, num_characters) | SAR().weights(texts, num_characters)


class TextLoss(Protocol):
    """Protocol of a recognition loss."""

    heads: ClassVar[frozenset[str]]  # the heads that it trains, see `TextNetwork`

    def __call__(self, outputs: Outputs, texts: Texts) -> Loss:
        """Return the terms of the loss by name."""

    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        """Return the weights [] (float64) of the terms, which depend on the texts alone."""


LOSSES: dict[str, type[TextLoss]] = {'ctc': CTC, 'sar': SAR, 'nrtr': NRTR, 'multi': Multi}
OURS = tuple(LOSSES.values())  # without those that plug-ins add


def check_outputs(outputs: Any, losses: Iterable[TextLoss], texts: Texts, K: int) -> None:
    """Raise RunError unless `outputs`, which may be a plug-in's, have what those `losses` that are from here take.

    `K`: number of characters.
    """
    B, L = texts.guide.shape
    shapes: dict[str, Shape] = {'ctc': (B, 'T', K + 1), 'sar': (B, L, K + 2), 'nrtr': (B, L - 1, K + 5)}
    heads = {head for loss in losses if type(loss) in OURS for head in loss.heads}
    check_fields('training', outputs, {head: shapes[head] for head in sorted(heads)})
