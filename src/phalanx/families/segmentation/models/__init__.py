"""Segmentation networks.

A network takes images [B, 3, H, W], H and W at least 32, and returns a list of logits [B, K, H, W], the main output first; in
evaluation mode the main output only. `num_outputs` is their number in training: the recipe has one loss per output.

To add one: a file here that ends with a builder function, whose positional parameter is the number of classes and whose
keyword-only parameters are the options of `model:` in a recipe; a line in MODELS; a file in `paddle/weights` if the original
has published weights; its golden numbers in tests/golden. Use `parallel.norms.BatchNorm2d`, which can be synchronised, and the
dropout layers of `nn.stochastic`; every parameter must take part in every training step.
"""

from collections.abc import Callable

from torch import nn

from phalanx.families.segmentation.models.deeplabv3p import deeplabv3p
from phalanx.families.segmentation.models.lraspp import lraspp
from phalanx.families.segmentation.models.ocrnet import ocrnet
from phalanx.families.segmentation.models.pp_liteseg import pp_liteseg
from phalanx.families.segmentation.models.segformer import segformer
from phalanx.families.segmentation.models.unet import unet

MODELS: dict[str, Callable[..., nn.Module]] = {
    'pp_liteseg': pp_liteseg,
    'unet': unet,
    'ocrnet': ocrnet,
    'segformer': segformer,
    'deeplabv3p': deeplabv3p,
    'lraspp': lraspp,
}
