"""Cross-entropy of the attention head. Shapes: B texts, L steps, K characters."""

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
