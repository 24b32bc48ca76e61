"""The recogniser of PP-OCRv4, and its weights as others publish them."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from phalanx.families.recognition.loss import CTC, NRTR, TextLoss
from phalanx.families.recognition.models.nrtr import NRTRHead
from phalanx.families.recognition.models.svtr_lcnetv3 import SVTRLCNetV3, svtr_lcnetv3
from phalanx.families.recognition.texts import Texts
from phalanx.nn.backbones.lcnetv3 import pp_lcnet_v3
from phalanx.paddle.weights import paddle_layout
from phalanx.paddle.weights.recognition import svtr_lcnetv3 as named
from phalanx.paddle.weights.recognition import svtr_onnx_layers
from phalanx.weights.onnx_file import layers_of
from phalanx.weights.reading import load_weights

HERE = find_spec('rapidocr_onnxruntime') is not None


small = partial(svtr_lcnetv3, 5, backbone=partial(pp_lcnet_v3, scale=0.35), neck_channels=16, hidden_size=16, depth=1)
guided = partial(small, nrtr_size=32, nrtr_depth=1)


def texts() -> Texts:
    """Two texts of 3 and 1 of 5 characters; for NRTR 2 is their start, 3 their end, and characters begin at 4."""
    guide = torch.tensor([[2, 4, 8, 6, 3, 0], [2, 7, 3, 0, 0, 0]])
    return Texts(torch.tensor([[1, 5, 3], [4, 0, 0]]), torch.tensor([3, 1]), guide, torch.tensor([1.0, 0.3]))


@pytest.mark.parametrize(('build', 'losses'), [(small, [CTC()]), (guided, [CTC(), NRTR()])], ids=['ctc', 'guided'])
def test_every_parameter_takes_part_in_training(build: Callable[[], SVTRLCNetV3], losses: list[TextLoss]) -> None:
    torch.manual_seed(0)
    model = build()
    assert model.heads == frozenset().union(*(loss.heads for loss in losses))
    outputs = model(torch.randn(2, 3, 48, 64), texts())
    assert outputs.ctc.shape == (2, 8, 6)
    terms = [term for loss in losses for term in loss(outputs, texts()).values()]
    torch.stack([term.total for term in terms]).sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_only_the_guide_trains_the_backbone_and_is_not_computed_without_texts() -> None:
    torch.manual_seed(0)
    model = guided()
    outputs = model(torch.randn(2, 3, 48, 64), texts())
    assert outputs.nrtr.shape == (2, 5, 10)
    outputs.ctc.sum().backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in model.backbone.parameters())
    outputs.nrtr.sum().backward()
    assert all(parameter.grad is not None for parameter in model.backbone.parameters())
    assert model.eval()(torch.randn(2, 3, 48, 64)).nrtr is None
    assert not small().use_guide  # nobody else would train it


def test_a_character_follows_from_those_before_it_and_from_the_line() -> None:
    torch.manual_seed(0)
    head = guided().eval().nrtr
    features, text = torch.randn(2, head.enter.in_features, 1, 8), texts()
    logits = head(features, text)
    guide = text.guide.clone()
    guide[0, 3] = 5
    changed = head(features, replace(text, guide=guide))
    torch.testing.assert_close(changed[0, :3], logits[0, :3])
    torch.testing.assert_close(changed[1], logits[1])
    assert (changed[0, 3:] - logits[0, 3:]).abs().amax(1).min() > 1e-4
    features[0, :, :, 7] = 9.0
    assert (head(features, text)[0] - logits[0]).abs().amax(1).min() > 1e-4


def test_the_head_is_initialised_as_in_paddleocr() -> None:
    """Linear layers Glorot uniform without biases, characters normal on the way in and out."""
    torch.manual_seed(0)
    head = NRTRHead(96, 480, size=384, depth=1, dropout=0.1)
    assert head.enter.weight.abs().max().item() == pytest.approx(math.sqrt(6 / (480 + 384)), rel=0.01)
    assert head.blocks[0].mlp[0].weight.abs().max().item() == pytest.approx(math.sqrt(6 / (384 + 1536)), rel=0.01)
    assert head.blocks[0].qkv.bias.abs().max() == 0
    for weight in (head.embedding.weight, head.classify.weight):
        assert weight.std().item() == pytest.approx(384**-0.5, rel=0.05)
    with pytest.raises(ValueError, match=r'^the size of the NRTR head must be a multiple of 32, got 100$'):
        guided(nrtr_size=100)


@pytest.mark.parametrize('height', [32, 33, 48, 64])
def test_a_line_has_a_place_every_eight_columns_whatever_its_height(height: int) -> None:
    model = small(backbone=partial(pp_lcnet_v3, scale=0.35, merged=True)).eval()
    assert height in model.heights
    assert model(torch.zeros(1, 3, height, 96)).ctc.shape == (1, 12, 6)


def test_its_arrays_have_the_names_of_the_original() -> None:
    """Names of the layers in PaddleOCR's rec_lcnetv3.py, rnn.py, rec_multi_head.py and rec_nrtr_head.py."""
    model = guided()
    names = {named(model).name(name) for name in model.state_dict() if not name.endswith('.num_batches_tracked')}
    assert {
        'backbone.conv1.bn._mean',
        'backbone.blocks2.0.dw_conv.conv_kxk.3.conv.weight',
        'backbone.blocks3.1.pw_conv.identity._variance',
        'backbone.blocks6.0.se.conv2.bias',
        'backbone.blocks6.3.pw_conv.act.lab.scale',
        'head.ctc_encoder.encoder.conv1.conv.weight',
        'head.ctc_encoder.encoder.svtr_block.0.mixer.qkv.bias',
        'head.ctc_head.fc.weight',
        'head.before_gtc.1.fc.weight',
        'head.gtc_head.decoder.0.cross_attn.kv.bias',
    } <= names


def test_the_published_network_has_every_array_of_the_original() -> None:
    """968 names and shapes of PP-OCRv4_mobile_rec.yml with 96 characters, of which the table of places is computed here."""
    published = json.loads((Path(__file__).parents[2] / 'golden' / 'data' / 'ppocrv4_rec.json').read_text())['published']
    with torch.device('meta'):
        model = svtr_lcnetv3(96, nrtr_size=384)
    arrays = [[named(model).name(name), list(tensor.shape)] for name, tensor in paddle_layout(model).items()]
    arrays.append(['head.gtc_head.positional_encoding.pe', [5000, 1, 384]])
    assert len(arrays) == published['arrays']
    assert zlib.crc32(json.dumps(sorted(arrays)).encode()) == published['crc32']


@pytest.mark.skipif(find_spec('onnx') is None, reason='reading ONNX files needs onnx')
def test_linear_layers_and_layer_norms_are_read_too() -> None:
    """The form of Paddle2ONNX: (x / deviation) * weight + bias, then a product with [in, out] and a sum."""
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


def test_a_network_of_sums_is_refused_with_the_fix() -> None:
    with pytest.raises(ValueError, match=r'build it with `merged: true`$'):
        svtr_onnx_layers(svtr_lcnetv3(5))


@pytest.mark.skipif(not HERE, reason='rapidocr_onnxruntime, which has the weights, is not here')
def test_the_published_recogniser_gives_the_same_probabilities() -> None:
    import onnxruntime

    spec = find_spec('rapidocr_onnxruntime')
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / 'models' / 'ch_PP-OCRv4_rec_infer.onnx'
    model: nn.Module = svtr_lcnetv3(6624, backbone=partial(pp_lcnet_v3, scale=0.95, merged=True)).eval()
    assert load_weights(model, file).notes == []
    (note,) = load_weights(
        svtr_lcnetv3(6624, backbone=partial(pp_lcnet_v3, scale=0.95, merged=True), nrtr_size=384), file
    ).notes
    assert 'missing and stay as initialised: nrtr.' in note
    line = np.random.default_rng(0).uniform(-1, 1, (1, 3, 48, 160)).astype(np.float32)
    session = onnxruntime.InferenceSession(file)
    (expected,) = session.run(None, {session.get_inputs()[0].name: line})
    with torch.no_grad():
        ours = model(torch.from_numpy(line)).ctc.softmax(2)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=1e-4)
