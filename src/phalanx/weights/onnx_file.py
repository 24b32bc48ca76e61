"""Weights in an ONNX file that another project exported: layer by layer, in the order in which they are computed.

Names of weights are lost in such files, or are numbers. Only the order of the layers remains.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt
from torch import Tensor, nn

from phalanx.paddle.pdparams import RefusedError
from phalanx.runtime.ppocr import characters_of

Array = npt.NDArray[Any]

PARTS = {  # of each kind of layer, by their names in torch
    'Conv': ('weight', 'bias'),
    'ConvTranspose': ('weight', 'bias'),
    'BatchNormalization': ('weight', 'bias', 'running_mean', 'running_var'),
    'Affine': ('scale', 'bias'),  # a product with a number, then a sum with a number
    'LayerNormalization': ('weight', 'bias'),  # only its product and its sum with a number per channel
    'MatMul': ('weight', 'bias'),  # a linear layer; torch's is [out, in]
}


class Layer(NamedTuple):
    kind: str  # of PARTS
    arrays: list[Array]  # its parts, in that order; a convolution may have no bias


def weights_in(data: bytes, model: nn.Module, names: Sequence[str]) -> dict[str, Array | Tensor]:
    """Read the weights of an ONNX file by the names of `model`, whose layers `names` are in the order of the file.

    A name with `{}` has a place for the part, `cell.{}_ih`; to others the part is appended.
    A batch norm that is not in `names` is merged into the convolution before it in the file: the bias of that convolution
    becomes the bias of the norm, which is otherwise the identity (`BatchNorm2d.folded`).
    Raises RefusedError when the file is damaged, or has other layers.
    """
    layers = layers_of(data)
    found: dict[str, Array | Tensor] = {}
    state = model.state_dict()
    if len(layers) != len(names):
        raise RefusedError(
            f'has {len(layers)} layers with weights, {type(model).__name__} has {len(names)}; is it this network?'
        )
    for name, layer in zip(names, layers, strict=True):
        spelled = name if '{}' in name else f'{name}.{{}}'
        own = {part for part in PARTS[layer.kind] if spelled.format(part) in state}
        given = dict(zip(PARTS[layer.kind], layer.arrays, strict=False))
        norm = f'{name.rpartition(".")[0]}.norm'
        if norm not in names and f'{norm}.running_var' in state:
            module: Any = model.get_submodule(norm)
            found |= {f'{norm}.{part}': tensor for part, tensor in module.folded().items()}
            if 'bias' not in own and 'bias' in given:
                found[f'{norm}.bias'] = given.pop('bias')
        if own != given.keys():
            raise RefusedError(f'has a {layer.kind} of {", ".join(given)} where {name} has {", ".join(sorted(own)) or "none"}')
        found |= {spelled.format(part): array.copy() for part, array in given.items()}  # arrays of the file are read-only
    return found


def characters_in(path: Path) -> tuple[str, ...]:
    """Characters of a recogniser in the metadata of an ONNX file; () without any."""
    try:
        return characters_of({each.key: each.value for each in _read(path.read_bytes()).metadata_props})
    except (OSError, RefusedError):  # reported when its weights are read
        return ()


def layers_of(data: bytes) -> list[Layer]:
    """Layers of an ONNX file that have weights. Raises RefusedError when it is damaged, or onnx is not installed."""
    graph = _read(data).graph
    try:
        return _layers(graph)
    except (ValueError, IndexError) as error:  # an unreadable array, or a node without its inputs
        raise RefusedError(f'is not a complete ONNX file: {error}') from None


def _layers(graph: Any) -> list[Layer]:
    constants: dict[str, Array] = {}
    layers: list[Layer] = []
    made: dict[str, Layer] = {}  # by the value that it computes
    for node in _nodes(graph, constants):
        if node.op_type == 'Identity':
            if node.input[0] in constants:
                constants[node.output[0]] = constants[node.input[0]]
            elif node.input[0] in made:
                made[node.output[0]] = made[node.input[0]]
            continue
        if node.op_type == 'Transpose' and node.input[0] in constants:  # of the matrix of a linear layer
            constants[node.output[0]] = constants[node.input[0]].T
            continue
        fixed = [constants[name] for name in node.input if name in constants]
        if not fixed:
            continue
        given = next((name for name in node.input if name not in constants), '')
        if node.op_type in PARTS:
            layer = Layer(node.op_type, [fixed[0].T] if node.op_type == 'MatMul' else fixed)
            layers.append(layer)
        elif node.op_type == 'Mul' and fixed[0].size == 1:
            layer = Layer('Affine', [fixed[0].reshape(1)])
        elif node.op_type == 'Mul' and fixed[0].ndim == 1:
            layer = Layer('LayerNormalization', fixed)
        elif node.op_type == 'Add' and fixed[0].ndim and (before := made.get(given)) is not None and len(before.arrays) == 1:
            layer = before
            layer.arrays.append(fixed[0].reshape(-1))
            if layer.kind in ('Affine', 'LayerNormalization'):
                layers.append(layer)
        else:
            continue
        made[node.output[0]] = layer
    return layers


def _nodes(graph: Any, constants: dict[str, Array]) -> Iterator[Any]:
    """Nodes of `graph` in order, with the body of a loop in place of the loop; their constants are added to `constants`."""
    constants |= {each.name: _array(each) for each in graph.initializer}
    for node in graph.node:
        if node.op_type == 'Constant' and node.attribute[0].name == 'value':
            constants[node.output[0]] = _array(node.attribute[0].t)
        elif node.op_type == 'Loop':
            (body,) = (each.g for each in node.attribute if each.name == 'body')
            given = zip(body.input, node.input, strict=False)
            constants |= {inside.name: constants[outside] for inside, outside in given if outside in constants}
            yield from _nodes(body, constants)
        else:
            yield node


def _array(tensor: Any) -> Array:
    """Convert a tensor. Raises ValueError for an unknown type, and for data in another file, which is not opened."""
    from onnx.numpy_helper import to_array

    if tensor.data_location == tensor.EXTERNAL:
        raise ValueError(f'{tensor.name} is stored in another file')
    try:
        array: Array = to_array(tensor)
    except (TypeError, KeyError):
        raise ValueError(f'{tensor.name} has the unknown type {tensor.data_type}') from None
    return array


def _read(data: bytes) -> Any:
    """Parse an ONNX file. Raises RefusedError when it is damaged, or onnx is not installed."""
    if find_spec('onnx') is None:
        raise RefusedError('is an exported network, which needs onnx: pip install "phalanx-vision[export]"')
    import onnx  # it comes with the extra `export`
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return onnx.load_model_from_string(data)
    except (DecodeError, ValueError) as error:
        raise RefusedError(f'is not a complete ONNX file: {error}') from None
