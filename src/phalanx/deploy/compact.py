"""Lower precision for ONNX files: float16, or 8-bit integers calibrated on images."""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from phalanx.runtime.prepare import Floats
from phalanx.runtime.session import INPUT, onnx_session

Precision = Literal['fp32', 'fp16', 'int8']
# Operators that onnxruntime computes in float32 only, at least on CPUs.
IN_FLOAT = ('Resize', 'NonMaxSuppression', 'TopK')
# Operators to quantise. Elementwise sums and products are no faster in integers, and lose much.
TO_INTEGERS = ('Conv', 'MatMul', 'Gemm', 'Concat', 'MaxPool', 'Relu')
LAYERS = ('Conv', 'MatMul', 'Gemm')
MOST_LOST = 0.002  # of the energy of a layer's output: 27 dB of signal over noise
LOOKED_AT = 8  # images on which the loss of layers is measured
ROUNDED = 'rounded/'  # before the names of values in integers


def check(file: Path, precision: Precision) -> None:
    """Raise ValueError for a network that cannot have this precision."""
    import onnx  # it comes with the extra `export`

    operators = {node.op_type for node in onnx.load(file).graph.node}
    if 'Loop' in operators:  # its body would stay in float32
        raise ValueError('the network decodes step by step, in a loop, which cannot be converted; use fp32')
    if 'LSTM' in operators and precision == 'fp16':  # onnxruntime ends the process when it meets one
        raise ValueError('onnxruntime has no LSTM in float16; use fp32 or int8')


def to_float16(file: Path) -> None:
    """Convert weights and most operations of a file to float16; input and outputs stay float32."""
    import onnx
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16  # type: ignore[import-untyped]

    blocked = [*DEFAULT_OP_BLOCK_LIST, *IN_FLOAT]
    onnx.save(convert_float_to_float16(onnx.load(file), keep_io_types=True, op_block_list=blocked), file)


def quantise(file: Path, images: Iterable[Floats]) -> dict[str, float]:
    """Quantise weights (per channel) and activations of a file to 8-bit integers, with ranges calibrated on `images`.

    `images` [3, H, W] are prepared network inputs. Layers that would lose more than MOST_LOST of their output stay in float.
    Returns their names and losses.
    """
    left = iter(images)
    shown = list(islice(left, LOOKED_AT))
    from onnxruntime.quantization.shape_inference import quant_pre_process  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory(dir=file.parent) as aside:
        folded = Path(aside) / 'folded.onnx'  # batch norms in the convolutions before them
        quant_pre_process(file, folded, skip_symbolic_shape=True)
        quantise_layers(folded, file, chain(shown, left))
        lossy = {name: lost for name, lost in measure_losses(folded, file, shown).items() if lost > MOST_LOST}
        kept = restore_float_layers(folded, file, lossy)
    return {name: lossy[name] for name in kept}


def quantise_layers(file: Path, out: Path, images: Iterable[Floats]) -> None:
    """Write `out`, with the operators TO_INTEGERS between DequantizeLinear and QuantizeLinear (QDQ format)."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static  # type: ignore[import-untyped]

    class Images(CalibrationDataReader):  # type: ignore[misc]
        """Calibration images, one at a time."""

        def __init__(self) -> None:
            self.left: Iterator[Floats] = iter(images)

        def get_next(self) -> dict[str, Any] | None:
            image = next(self.left, None)
            return None if image is None else {INPUT: image[None]}

    quantize_static(
        file,
        out,
        Images(),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=list(TO_INTEGERS),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def restore_float_layers(exact: Path, rounded: Path, layers: Collection[str]) -> list[str]:
    """Restore the float inputs and weights of `layers` in the file `rounded` from `exact`; returns the restored names.

    Not possible for layers whose input was removed: a ReLU, which quantisation subsumes. Float operators after a restored layer
    take its output before rounding.
    """
    import onnx

    source, model = onnx.load(exact), onnx.load(rounded)
    weights = {tensor.name: tensor for tensor in source.graph.initializer}
    makers = {(name, node.name, node.op_type) for node in source.graph.node for name in node.output}
    values = {INPUT, *(one for node in model.graph.node for one in node.output if (one, node.name, node.op_type) in makers)}
    inputs = {node.name: node.input for node in source.graph.node if set(node.input) <= values | weights.keys()}
    kept = [node for node in model.graph.node if node.name in layers and node.name in inputs]
    for node in kept:
        node.input[:] = [f'{name} of {node.name}' if name in weights else name for name in inputs[node.name]]
        for name in weights.keys() & set(inputs[node.name]):  # under another name: other layers may use the quantised one
            model.graph.initializer.add().CopyFrom(weights[name])
            model.graph.initializer[-1].name = f'{name} of {node.name}'
    outputs = {rounded: name for name, rounded in dequantised_names(model).items() if name in {node.output[0] for node in kept}}
    for node in model.graph.node:
        if node.op_type not in TO_INTEGERS:
            node.input[:] = [outputs.get(name, name) for name in node.input]
    onnx.save(model, rounded)
    return [node.name for node in kept]


def dequantised_names(model: Any) -> dict[str, str]:
    """Names of quantised values -> names of their outputs of DequantizeLinear."""
    back = {node.input[0]: node.output[0] for node in model.graph.node if node.op_type == 'DequantizeLinear'}
    nodes = [node for node in model.graph.node if node.op_type == 'QuantizeLinear']
    return {node.input[0]: back[node.output[0]] for node in nodes if node.output[0] in back}


def measure_losses(exact: Path, rounded: Path, images: Iterable[Floats]) -> dict[str, float]:
    """Loss of each layer in integers with exact inputs: mean squared error over mean square of its output.

    Inputs and weights are rounded, and the output once more. Both networks become one graph, in which rounded layers take the
    outputs of the exact ones before them.
    """
    import onnx
    import onnx.compose

    both, other = onnx.load(exact), onnx.compose.add_prefix(onnx.load(rounded), ROUNDED)
    values = {INPUT, *(name for node in both.graph.node for name in node.output)}
    layers = {node.name: node.output[0] for node in both.graph.node if node.op_type in LAYERS}
    for node in other.graph.node:
        for place, name in enumerate(node.input):
            given = name.removeprefix(ROUNDED)
            if given in values and (node.op_type == 'QuantizeLinear' or given == INPUT):
                node.input[place] = given
    wanted = {node.name.removeprefix(ROUNDED): node.output[0] for node in other.graph.node if node.op_type in LAYERS}
    both.graph.node.extend(other.graph.node)
    both.graph.initializer.extend(other.graph.initializer)
    both.opset_import.extend(one for one in other.opset_import if one.domain not in {own.domain for own in both.opset_import})
    again = dequantised_names(both)
    made = {name: (layers[name], wanted[name], again.get(layers[name], layers[name])) for name in layers if name in wanted}
    compute = inner_values(both, list(dict.fromkeys(name for values in made.values() for name in values)))
    errors, squares = dict.fromkeys(made, 0.0), dict.fromkeys(made, 0.0)
    for image in images:
        found = compute(image[None])
        for name, outputs in made.items():
            right, *given = (found[output] for output in outputs)
            errors[name] += sum(float(np.square(right - one).mean()) for one in given)
            squares[name] += float(np.square(right).mean())
    return {name: errors[name] / squares[name] for name in made if squares[name]}


def inner_values(model: Any, names: Sequence[str]) -> Callable[[Floats], dict[str, Any]]:
    """Function from prepared images to the inner values `names` of a network without layer fusion; changes `model`."""
    import onnx

    outputs = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in outputs)
    session = onnx_session(model.SerializeToString(), fused=False)
    return lambda images: dict(zip(names, session.run(names, {INPUT: images}), strict=True))
