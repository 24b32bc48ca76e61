"""Networks in fewer bits compute nearly the same, and those that have no such form are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.checker
import onnx.helper
import onnx.numpy_helper
import onnxruntime
import pytest

from phalanx.deploy import compact

CHANNELS = 8
Floats = npt.NDArray[np.float32]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def image() -> Floats:
    return rng().standard_normal((3, 16, 20)).astype(np.float32)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A convolution whose output channels differ in size by powers of two, and a ReLU."""
    weights = rng().standard_normal((CHANNELS, 3, 3, 3)) * 2.0 ** np.arange(CHANNELS)[:, None, None, None]
    dims = ['batch', 3, 'height', 'width']
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node('Conv', ['images', 'weights'], ['raw'], pads=[1, 1, 1, 1]),
            onnx.helper.make_node('Relu', ['raw'], ['maps']),
        ],
        'network',
        [onnx.helper.make_tensor_value_info('images', onnx.TensorProto.FLOAT, dims)],
        [onnx.helper.make_tensor_value_info('maps', onnx.TensorProto.FLOAT, ['batch', CHANNELS, 'height', 'width'])],
        [onnx.numpy_helper.from_array(weights.astype(np.float32), 'weights')],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid('', 20)], ir_version=10)
    onnx.save(model, tmp_path / 'network.onnx')
    return tmp_path / 'network.onnx'


def maps(file: Path) -> Floats:
    """[C, H, W] for the image."""
    return onnxruntime.InferenceSession(file).run(None, {'images': image()[None]})[0][0]  # type: ignore[no-any-return]


def relative_error(found: Floats, expected: Floats) -> Any:
    """[C] the largest difference in each channel, as a share of its largest value."""
    return np.abs(found - expected).max((1, 2)) / np.abs(expected).max((1, 2))


def test_float16_keeps_three_digits(network: Path) -> None:
    """The type of 10 bits of mantissa rounds by 2**-11; sums of 27 products add some of that."""
    expected = maps(network)
    compact.to_float16(network)
    onnx.checker.check_model(network, full_check=True)  # suppression of boxes can be added to valid files alone
    assert onnx.load(network).graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
    assert (relative_error(maps(network), expected) < 5e-3).all()


def test_what_follows_the_last_layer_is_computed_in_float32(network: Path) -> None:
    """Boxes of a detector are anchors in pixels minus distances. From 512 on, float16 has halves of pixels."""
    model = onnx.load(network)
    scale, anchors = (onnx.numpy_helper.from_array(np.float32(value), name) for name, value in (('s', 0.01), ('a', 700.3)))
    model.graph.initializer.extend([scale, anchors])
    model.graph.node[-1].output[0] = 'distances'
    model.graph.node.extend(
        [onnx.helper.make_node('Mul', ['distances', 's'], ['scaled']), onnx.helper.make_node('Sub', ['a', 'scaled'], ['maps'])]
    )
    onnx.save(model, network)
    expected = maps(network)
    compact.to_float16(network)
    onnx.checker.check_model(network, full_check=True)
    assert onnx.load(network).graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
    assert np.abs(expected - 700.3).max() > 2
    assert np.abs(maps(network) - expected).max() < 0.02


def test_integers_are_scaled_by_channel(network: Path) -> None:
    """With one scale for all channels the smallest, 128 times smaller than the largest, would be rounded away."""
    expected = maps(network)
    compact.quantise(network, [image()])
    model = onnx.load(network)
    assert {node.op_type for node in model.graph.node} >= {'QuantizeLinear', 'DequantizeLinear', 'Conv'}
    scales = [onnx.numpy_helper.to_array(one) for one in model.graph.initializer if one.name == 'weights_scale']
    assert scales[0].shape == (CHANNELS,)
    assert scales[0].max() / scales[0].min() > 50
    assert relative_error(maps(network), expected)[-1] < 0.03


@pytest.mark.parametrize(
    ('operator', 'precision', 'reason'),
    [
        ('Loop', 'int8', 'decodes step by step'),
        ('Loop', 'fp16', 'decodes step by step'),
        ('LSTM', 'fp16', 'no LSTM in float16'),
    ],
)
def test_a_network_that_cannot_be_quantised_is_refused(
    operator: str, precision: compact.Precision, reason: str, tmp_path: Path
) -> None:
    graph = onnx.helper.make_graph([onnx.helper.make_node(operator, ['x'], ['y'])], 'network', [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / 'network.onnx')
    with pytest.raises(ValueError, match=reason):
        compact.check(tmp_path / 'network.onnx', precision)
