"""Names of PaddleOCR's PP-OCRv4 and PP-OCRv5 mobile recognisers, and the layers of their exported files."""

from __future__ import annotations

from phalanx.families.recognition.models.svtr_lcnetv3 import SVTRLCNetV3
from phalanx.nn.backbones.lcnetv3 import ConvSum
from phalanx.weights.originals.db import PP_LCNET_V3
from phalanx.weights.originals.original import PADDLE_BUFFERS, Original
from phalanx.weights.originals.svtr_lcnet import NECK


def original(model: SVTRLCNetV3) -> Original:
    """How PaddleOCR names the parameters of `model`. Those of its attention head (`head.gtc_head`) are left over."""
    return Original(rules=((r'^head\.', 'head.ctc_head.fc.'), *PP_LCNET_V3, *NECK, *PADDLE_BUFFERS))


def in_order(model: SVTRLCNetV3) -> list[str]:
    """The layers of `model` that have weights, in the order in which PaddleOCR computes them, which is ours.

    Raises ValueError where exported files have other layers.
    """
    if any(isinstance(module, ConvSum) for module in model.modules()):
        raise ValueError('exported files of svtr_lcnetv3 have a single convolution for each sum: build it with `merged: true`')
    return [name for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))]
