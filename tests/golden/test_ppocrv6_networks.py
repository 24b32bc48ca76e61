"""Networks of PP-OCRv6 small against the PyTorch port in the transformers library.

Expected numbers were produced by version 5.24 in float64 on CPU, with the images of weights.py and weights drawn by our names.
The norms of its mixing blocks were given the 1e-5 that PaddlePaddle's published file has; the port has 1e-6.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from golden.weights import draw, images
from phalanx.families.recognition.models.svtr_lcnetv3 import SVTRLCNetV4
from phalanx.families.text_detection.models.db import db
from phalanx.nn.backbones.lcnetv4 import pp_lcnet_v4

EXPECTED = json.loads((Path(__file__).parent / 'data' / 'ppocrv6.json').read_text())


def filled(model: nn.Module) -> nn.Module:
    for name, value in model.state_dict().items():
        if not name.endswith('.num_batches_tracked'):
            value.copy_(torch.from_numpy(draw(name.replace('running_var', '_variance'), value.shape, gain=1.0)))
    return model.double().eval()


@torch.no_grad()
def test_the_recogniser_gives_the_same_probabilities() -> None:
    ours = filled(SVTRLCNetV4(10))(torch.from_numpy(images((1, 3, 48, 80))).double()).ctc.softmax(2)
    np.testing.assert_allclose(ours[0].numpy(), EXPECTED['recognition']['probabilities'], rtol=0, atol=1e-6)


@torch.no_grad()
def test_the_detector_gives_the_same_map() -> None:
    model = filled(db(backbone=partial(pp_lcnet_v4), neck='wide_rse_fpn', neck_channels=96))
    ours = model(torch.from_numpy(images((1, 3, 64, 96))).double()).shrink
    np.testing.assert_allclose(ours[0, 0, ::8, ::8].numpy(), EXPECTED['detection']['probabilities'], rtol=0, atol=1e-6)
    assert abs(ours.mean().item() - EXPECTED['detection']['mean']) < 1e-6
