"""Losses of recognition: called with the outputs of a network and the texts, they give named Terms."""

from typing import ClassVar, Protocol

from torch import Tensor

from phalanx.families.recognition.loss.ctc import CTC
from phalanx.families.recognition.loss.multi import Multi
from phalanx.families.recognition.loss.nrtr import NRTR
from phalanx.families.recognition.loss.sar import SAR
from phalanx.families.recognition.models.outputs import Outputs
from phalanx.families.recognition.texts import Texts
from phalanx.families.task import Loss


class TextLoss(Protocol):
    """What every loss of recognition is."""

    heads: ClassVar[frozenset[str]]  # those of the networks that it trains, see `TextNetwork`

    def __call__(self, outputs: Outputs, texts: Texts) -> Loss: ...
    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        """The weights [] (float64) of its Terms, which the texts alone determine."""


LOSSES: dict[str, type[TextLoss]] = {'ctc': CTC, 'sar': SAR, 'nrtr': NRTR, 'multi': Multi}
