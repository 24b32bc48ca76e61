"""Losses of recognition: called with the outputs of a network, the texts and the step they belong to, they give named Terms."""

from phalanx.recognition.loss.ctc import CTC
from phalanx.recognition.loss.multi import Multi
from phalanx.recognition.loss.sar import SAR

LOSSES = {'ctc': CTC, 'sar': SAR, 'multi': Multi}
