"""The losses of both heads."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from phalanx.families.recognition.loss.ctc import CTC
from phalanx.families.recognition.loss.sar import SAR
from phalanx.families.recognition.models.outputs import Outputs
from phalanx.families.recognition.texts import Texts
from phalanx.families.task import Loss, Term


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
        return {
            'ctc': Term(ctc.total * self.ctc_weight, ctc.weight),
            'sar': Term(sar.total * self.sar_weight, sar.weight),
        }

    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        return CTC().weights(texts, num_characters) | SAR().weights(texts, num_characters)
