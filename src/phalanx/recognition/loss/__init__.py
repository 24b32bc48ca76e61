"""Losses of recognition: called with the outputs of a network and the texts, they give named Terms."""

from typing import Protocol

from torch import Tensor

from phalanx.recognition.loss.ctc import CTC
from phalanx.recognition.loss.multi import Multi
from phalanx.recognition.loss.sar import SAR
from phalanx.recognition.models.outputs import Outputs
from phalanx.recognition.texts import Texts
from phalanx.task import Loss


class TextLoss(Protocol):
    """What every loss of recognition is."""

    def __call__(self, outputs: Outputs, texts: Texts) -> Loss: ...
    def weights(self, texts: Texts, num_characters: int) -> dict[str, Tensor]:
        """The weights [] (float64) of its Terms, which the texts alone tell."""


LOSSES = {'ctc': CTC, 'sar': SAR, 'multi': Multi}
