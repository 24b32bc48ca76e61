"""Segmentation networks.

A network takes images [B, 3, H, W], H and W at least 32, and gives a list of logits [B, K, H, W], the main output first; in
evaluation mode the main output only. Its `num_outputs` says how many it gives in training: the recipe has one loss for each.

To add one: a file here that ends with a variant function, whose positional parameter is the number of classes and whose
keyword-only parameters are the options of `model:` in a recipe; a line in MODELS; a file in `paddle/weights` if the original
has published weights; its golden numbers in tests/golden. Batch norms are `parallel.norms.BatchNorm2d`, so that they can be
synchronised; what is dropped at random is dropped by `nn.stochastic`; every parameter takes part in every training step.
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
