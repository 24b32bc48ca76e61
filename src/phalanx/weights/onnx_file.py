"""Weights in an ONNX file that another project exported: layer by layer, in the order in which they are computed.

Such files have lost the names of the weights, or have numbers instead: only the order of the layers remains.
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

PARTS = {  # parts of each kind of layer, by their names in torch
    'Conv': ('weight', 'bias'),
    'ConvTranspose': ('weight', 'bias'),
    'BatchNormalization': ('weight', 'bias', 'running_mean', 'running_var'),
    'Affine': ('scale', 'bias'),  # a product with a scalar, then a sum with a scalar
    'LayerNormalization': ('weight', 'bias'),  # only its product and sum with a vector of channels
    'MatMul': ('weight', 'bias'),  # a linear layer; torch's is [out, in]
}


class Layer(NamedTuple):
    kind: str  # of PARTS
    arrays: list[Array]  # parts in that order; a convolution may have no bias


def weights_in(data: bytes, model: nn.Module, names: Sequence[str]) -> dict[str, Array | Tensor]:
    """Read the weights of an ONNX file by the names of `model`, whose layers `names` are in the order of the file.

    A name with `{}` has a placeholder for the part, `cell.{}_ih`; to other names the part is appended.
    A batch norm that is not in `names` is merged into the convolution before it in the file: the bias of that convolution
    becomes the bias of the norm, which is otherwise the identity (`BatchNorm2d.folded`).
    Raises RefusedError if the file is damaged, or has other layers.
    """
    layers = layers_of(data)
    weights: dict[str, Array | Tensor] = {}
    state = model.state_dict()
    if len(layers) != len(names):
        raise RefusedError(
            f'has {len(layers)} layers with weights, {type(model).__name__} has {len(names)}; is it this network?'
        )
    for name, layer in zip(names, layers, strict=True):
        pattern = name if '{}' in name else f'{name}.{{}}'
        own = {part for part in PARTS[layer.kind] if pattern.format(part) in state}
        stored = dict(zip(PARTS[layer.kind], layer.arrays, strict=False))
        # A merged norm stays a norm in the network, as the identity, with the bias of the merged convolution.
        norm = f'{name.rpartition(".")[0]}.norm'
        if norm not in names and f'{norm}.running_var' in state:
            module: Any = model.get_submodule(norm)
            weights |= {f'{norm}.{part}': tensor for part, tensor in module.folded().items()}
            if 'bias' not in own and 'bias' in stored:
                weights[f'{norm}.bias'] = stored.pop('bias')
        if own != stored.keys():
            raise RefusedError(f'has a {layer.kind} of {", ".join(stored)} where {name} has {", ".join(sorted(own)) or "none"}')
        weights |= {pattern.format(part): array.copy() for part, array in stored.items()}  # arrays of the file are read-only
    return weights


def characters_in(path: Path) -> tuple[str, ...]:
    """Characters of a recogniser in the metadata of an ONNX file; () without any."""
    try:
        return characters_of({each.key: each.value for each in _read(path.read_bytes()).metadata_props})
    except (OSError, RefusedError):  # reported when its weights are read
        return ()


def layers_of(data: bytes) -> list[Layer]:
    """Layers of an ONNX file that have weights. Raises RefusedError if it is damaged, or onnx is not installed."""
    graph = _read(data).graph
    try:
        return _layers(graph)
    except (ValueError, IndexError) as error:  # an unreadable array, or a node without its inputs
        raise RefusedError(f'is not a complete ONNX file: {error}') from None


def _layers(graph: Any) -> list[Layer]:
    constants: dict[str, Array] = {}
    layers: list[Layer] = []
    layer_of: dict[str, Layer] = {}  # value -> layer that computes it
    # Nodes come in the order of computation; only those with constant inputs, the weights, become layers.
    for node in _nodes(graph, constants):
        if node.op_type == 'Identity':
            if node.input[0] in constants:
                constants[node.output[0]] = constants[node.input[0]]
            elif node.input[0] in layer_of:
                layer_of[node.output[0]] = layer_of[node.input[0]]
            continue
        if node.op_type == 'Transpose' and node.input[0] in constants:  # of the matrix of a linear layer
            constants[node.output[0]] = constants[node.input[0]].T
            continue
        arrays = [constants[name] for name in node.input if name in constants]
        if not arrays:
            continue
        source = next((name for name in node.input if name not in constants), '')
        if node.op_type in PARTS:
            layer = Layer(node.op_type, [arrays[0].T] if node.op_type == 'MatMul' else arrays)
            layers.append(layer)
        # Learnable affine blocks and layer norms are exported as Mul and Add.
        elif node.op_type == 'Mul' and arrays[0].size == 1:
            layer = Layer('Affine', [arrays[0].reshape(1)])
        elif node.op_type == 'Mul' and arrays[0].ndim == 1:
            layer = Layer('LayerNormalization', arrays)
        elif node.op_type == 'Add' and arrays[0].ndim and (last := layer_of.get(source)) is not None and len(last.arrays) == 1:
            layer = last
            layer.arrays.append(arrays[0].reshape(-1))
            if layer.kind in ('Affine', 'LayerNormalization'):
                layers.append(layer)
        else:
            continue
        layer_of[node.output[0]] = layer
    return layers


def _nodes(graph: Any, constants: dict[str, Array]) -> Iterator[Any]:
    """Nodes of `graph` in order, the body of a loop in place of the loop; their constants are added to `constants`."""
    # Weights are initializers or Constant nodes; a loop gets those of the graph around it as inputs.
    constants |= {each.name: _array(each) for each in graph.initializer}
    for node in graph.node:
        if node.op_type == 'Constant' and node.attribute[0].name == 'value':
            constants[node.output[0]] = _array(node.attribute[0].t)
        elif node.op_type == 'Loop':
            # The decoder of a table network is a loop; its layers are computed in its body.
            (body,) = (each.g for each in node.attribute if each.name == 'body')
            inputs = zip(body.input, node.input, strict=False)
            constants |= {inside.name: constants[outside] for inside, outside in inputs if outside in constants}
            yield from _nodes(body, constants)
        else:
            yield node


def _array(tensor: Any) -> Array:
    """Convert a tensor. Raises ValueError for an unknown type, and for external data, which is not opened."""
    from onnx.numpy_helper import to_array

    if tensor.data_location == tensor.EXTERNAL:
        raise ValueError(f'{tensor.name} is stored in another file')
    try:
        array: Array = to_array(tensor)
    except (TypeError, KeyError):
        raise ValueError(f'{tensor.name} has the unknown type {tensor.data_type}') from None
    return array


def _read(data: bytes) -> Any:
    """Parse an ONNX file. Raises RefusedError if it is damaged, or onnx is not installed."""
    if find_spec('onnx') is None:
        raise RefusedError('is an exported network, which needs onnx: pip install "phalanx-vision[export]"')
    import onnx  # it comes with the extra `export`
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return onnx.load_model_from_string(data)
    except (DecodeError, ValueError) as error:
        raise RefusedError(f'is not a complete ONNX file: {error}') from None
