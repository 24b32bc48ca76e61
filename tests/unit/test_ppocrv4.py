"""The recogniser of PP-OCRv4, and its weights as others publish them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from phalanx.families.recognition.loss.ctc import CTC
from phalanx.families.recognition.models.svtr_lcnetv3 import svtr_lcnetv3
from phalanx.families.recognition.texts import Texts
from phalanx.weights.onnx_file import layers_of
from phalanx.weights.originals.svtr_lcnetv3 import in_order, original
from phalanx.weights.reading import load_weights

HERE = find_spec('rapidocr_onnxruntime') is not None


def test_every_parameter_takes_part_in_training() -> None:
    torch.manual_seed(0)
    model = svtr_lcnetv3(5, scale=0.35, neck_channels=16, hidden_size=16, depth=1)
    texts = Texts(
        torch.tensor([[1, 5, 3], [4, 0, 0]]),
        torch.tensor([3, 1]),
        torch.tensor([[6, 0, 4, 2, 6, 7], [6, 3, 6, 7, 7, 7]]),
        torch.tensor([1.0, 0.3]),
    )
    outputs = model(torch.randn(2, 3, 48, 64), texts)
    assert outputs.ctc.shape == (2, 8, 6)
    terms = CTC()(outputs, texts)
    torch.stack([term.total for term in terms.values()]).sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize('height', [33, 48])
def test_a_line_has_a_place_every_eight_columns(height: int) -> None:
    model = svtr_lcnetv3(5, scale=0.35, merged=True, neck_channels=16, hidden_size=16, depth=1).eval()
    assert height in model.heights
    assert model(torch.zeros(1, 3, height, 96)).ctc.shape == (1, 12, 6)


def test_its_arrays_have_the_names_of_the_original() -> None:
    """Those of the layers in PaddleOCR's rec_lcnetv3.py, rnn.py and rec_multi_head.py."""
    model = svtr_lcnetv3(5, scale=0.35)
    names = {original(model).name(name) for name in model.state_dict() if not name.endswith('.num_batches_tracked')}
    assert {
        'backbone.conv1.bn._mean',
        'backbone.blocks2.0.dw_conv.conv_kxk.3.conv.weight',
        'backbone.blocks3.1.pw_conv.identity._variance',
        'backbone.blocks6.0.se.conv2.bias',
        'backbone.blocks6.3.pw_conv.act.lab.scale',
        'head.ctc_encoder.encoder.conv1.conv.weight',
        'head.ctc_encoder.encoder.svtr_block.1.mixer.qkv.bias',
        'head.ctc_head.fc.weight',
    } <= names


@pytest.mark.skipif(find_spec('onnx') is None, reason='reading ONNX files needs onnx')
def test_linear_layers_and_layer_norms_are_read_too() -> None:
    """As Paddle2ONNX writes them: (x / deviation) * weight + bias, then a product with [in, out] and a sum."""
    from onnx import helper, numpy_helper

    numbers = {'g': np.array([1, 2]), 'h': np.array([3, 4]), 'w': np.array([[1, 2, 3], [4, 5, 6]]), 'b': np.array([7, 8, 9])}
    nodes = [
        helper.make_node('Div', ['x', 'deviation'], ['d']),
        helper.make_node('Mul', ['d', 'g'], ['m']),
        helper.make_node('Add', ['m', 'h'], ['n']),
        helper.make_node('MatMul', ['n', 'w'], ['p']),
        helper.make_node('Add', ['p', 'b'], ['out']),
    ]
    weights = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in numbers.items()]
    graph = helper.make_graph(nodes, 'network', [], [], initializer=weights)
    layers = layers_of(helper.make_model(graph).SerializeToString())
    assert [(layer.kind, [array.tolist() for array in layer.arrays]) for layer in layers] == [
        ('LayerNormalization', [[1, 2], [3, 4]]),
        ('MatMul', [[[1, 4], [2, 5], [3, 6]], [7, 8, 9]]),
    ]


def test_a_network_of_sums_is_refused_with_its_cure() -> None:
    with pytest.raises(ValueError, match=r'build it with `merged: true`$'):
        in_order(svtr_lcnetv3(5))


@pytest.mark.skipif(not HERE, reason='rapidocr_onnxruntime, which has the weights, is not here')
def test_the_published_recogniser_gives_the_same_probabilities() -> None:
    import onnxruntime

    spec = find_spec('rapidocr_onnxruntime')
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / 'models' / 'ch_PP-OCRv4_rec_infer.onnx'
    model: nn.Module = svtr_lcnetv3(6624, merged=True).eval()
    assert load_weights(model, file).notes == []
    line = np.random.default_rng(0).uniform(-1, 1, (1, 3, 48, 160)).astype(np.float32)
    session = onnxruntime.InferenceSession(file)
    (expected,) = session.run(None, {session.get_inputs()[0].name: line})
    with torch.no_grad():
        ours = model(torch.from_numpy(line)).ctc.softmax(2)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=1e-4)
