"""Smoothed cross-entropy of the NRTR head. Shapes: B texts, L steps, K characters."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.recognition.models.outputs import Outputs
from phalanx.families.recognition.texts import Texts
from phalanx.families.task import Loss, Term
from phalanx.nn.precision import at_least_float32

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
