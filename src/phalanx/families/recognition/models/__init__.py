"""Recognition networks.

A network takes images [B, 3, h, w], normalised, and the texts that they show if they are known, and gives `Outputs`: logits for
CTC always; what else the losses need when it was given the texts.

To add one: a file here that ends with a variant, a function or the network itself, whose positional parameter is the number of
characters and whose keyword-only parameters are the options of `model:` in a recipe; a line in MODELS; a file in
`paddle/weights` if the original has published weights; its golden numbers in tests/golden. Batch norms are
`parallel.norms.BatchNorm2d`, so that they can be synchronised, dropout is `phalanx.nn.stochastic.Dropout`, and every parameter
takes part in every training step.
"""

from collections.abc import Callable

from torch import nn

from phalanx.families.recognition.models.crnn import CRNN
from phalanx.families.recognition.models.svtr_lcnet import SVTRLCNet
from phalanx.families.recognition.models.svtr_lcnetv3 import SVTRLCNetV4, svtr_lcnetv3

MODELS: dict[str, Callable[..., nn.Module]] = {
    'crnn': CRNN,
    'svtr_lcnet': SVTRLCNet,
    'svtr_lcnetv3': svtr_lcnetv3,
    'svtr_lcnetv4': SVTRLCNetV4,
}
