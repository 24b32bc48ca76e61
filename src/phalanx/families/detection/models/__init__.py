"""Detection networks.

A network takes images [B, 3, H, W], H and W multiples of 32, and returns the input of its loss, in training and in evaluation;
`decode` turns that into boxes [B, A, 4] (xyxy, in pixels of the input) and scores [B, A, K]. An optional method `fuse` makes it
faster for evaluation and export.

To add one: a file here that ends with a variant function, whose positional parameter is the number of classes and whose
keyword-only parameters are the options of `model:` in a recipe; a line in MODELS; a file in `paddle/weights` if the original
has published weights; its golden numbers in tests/golden. Batch norms are `parallel.norms.BatchNorm2d`, so that they can be
synchronised, and every parameter takes part in every training step.
"""

from collections.abc import Callable

from torch import nn

from phalanx.families.detection.models.deimv2 import deimv2
from phalanx.families.detection.models.dfine import dfine
from phalanx.families.detection.models.ppyoloe import ppyoloe
from phalanx.families.detection.models.rtdetr import rtdetrv2

MODELS: dict[str, Callable[..., nn.Module]] = {
    'ppyoloe': ppyoloe,
    'dfine': dfine,
    'deimv2': deimv2,
    'rtdetr': rtdetrv2,
    'rtdetrv2': rtdetrv2,
}
