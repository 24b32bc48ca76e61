"""Recognition networks.

A network takes normalised images [B, 3, h, w] and, in training, their texts, and returns `Outputs`: the logits of CTC and, if
it was given the texts, everything else that the losses need.

To add one: a file here that ends with a variant, a function or the network itself, whose positional parameter is the number of
characters and whose keyword-only parameters are the options of `model:` in a recipe; a line in MODELS; a file in
`paddle/weights` if the original has published weights; its golden numbers in tests/golden. Use `parallel.norms.BatchNorm2d`
for batch norms, so that they can be synchronised, and `phalanx.nn.stochastic.Dropout` for dropout, so that masks do not depend
on the number of ranks. Every parameter must take part in every training step.
"""

from collections.abc import Callable

from torch import nn

from phalanx.families.recognition.models.crnn import CRNN
from phalanx.families.recognition.models.svtr_lcnet import SVTRLCNet
from phalanx.families.recognition.models.svtr_lcnetv3 import ConvLCNetV4, SVTRLCNetV4, svtr_lcnetv3

MODELS: dict[str, Callable[..., nn.Module]] = {
    'crnn': CRNN,
    'svtr_lcnet': SVTRLCNet,
    'svtr_lcnetv3': svtr_lcnetv3,
    'svtr_lcnetv4': SVTRLCNetV4,
    'conv_lcnetv4': ConvLCNetV4,
}
