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
ALL_LAYERS = (*LAYERS, 'ConvTranspose', 'Einsum')
MOST_LOST = 0.002  # maximum loss of a layer, relative to the energy of its output: 27 dB signal-to-noise ratio
LOSS_IMAGES = 8  # number of images for measuring the losses of layers
ROUNDED = 'rounded/'  # prefix of the names of quantised values


def check(file: Path, precision: Precision) -> None:
    """Raise ValueError for a network that cannot have this precision."""
    import onnx  # it comes with the extra `export`

    # Reject what cannot be converted before hours of calibration.
    operators = {node.op_type for node in onnx.load(file).graph.node}
    if 'Loop' in operators:  # its body would stay in float32
        raise ValueError('the network decodes step by step, in a loop, which cannot be converted; use fp32')
    if 'LSTM' in operators and precision == 'fp16':  # onnxruntime ends the process when it meets one
        raise ValueError('onnxruntime has no LSTM in float16; use fp32 or int8')


def to_float16(file: Path) -> None:
    """Convert weights and most operations of a file to float16; input, outputs and all after the last layers stay float32.

    Of 10 bits of mantissa, places of pixels up to 1024 would keep halves.
    """
    import onnx
    import onnx_ir
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16  # type: ignore[import-untyped]

    exact = onnx.load(file)
    for number, node in enumerate(exact.graph.node):
        node.name = node.name or f'node_{number}'
    blocked = {'op_block_list': [*DEFAULT_OP_BLOCK_LIST, *IN_FLOAT], 'node_block_list': after_last_layers(exact)}
    model = onnx_ir.from_proto(convert_float_to_float16(exact, keep_io_types=True, **blocked))
    # Between two operations in float32 stand a cast to float16 and one back, which would round.
    casts = {id(node): node.attributes['to'].as_int() for node in model.graph if node.op_type == 'Cast'}
    for node in model.graph:
        if casts.get(id(node)) == onnx_ir.DataType.FLOAT:
            before = node.inputs[0].producer()
            if casts.get(id(before)) == onnx_ir.DataType.FLOAT16:
                node.replace_input_with(0, before.inputs[0])
    model.graph.sort()  # the casts that the conversion adds stand at the end
    onnx.save(onnx_ir.to_proto(model), file)


def after_last_layers(model: Any) -> list[str]:
    """Names of the operations of an ONNX model from which no layer takes its input, directly or through others."""
    names, taken = list[str](), set[str]()
    for node in reversed(model.graph.node):
        if node.op_type in ALL_LAYERS or taken & set(node.output):
            taken.update(node.input)
        else:
            names.append(node.name)
    return names


def quantise(file: Path, images: Iterable[Floats]) -> dict[str, float]:
    """Quantise weights (per channel) and activations of a file to 8-bit integers, with ranges calibrated on `images`.

    `images` [3, H, W] are prepared network inputs. Layers that would lose more than MOST_LOST of their output stay in float.
    Returns their names and losses.
    """
    remaining = iter(images)
    samples = list(islice(remaining, LOSS_IMAGES))
    from onnxruntime.quantization.shape_inference import quant_pre_process  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory(dir=file.parent) as aside:
        folded = Path(aside) / 'folded.onnx'  # batch norms in the convolutions before them
        quant_pre_process(file, folded, skip_symbolic_shape=True)
        # Quantise all layers, measure the loss of each by itself, then restore those that lose too much.
        quantise_layers(folded, file, chain(samples, remaining))
        lossy = {name: loss for name, loss in measure_losses(folded, file, samples).items() if loss > MOST_LOST}
        restored = restore_float_layers(folded, file, lossy)
    return {name: lossy[name] for name in restored}


def quantise_layers(file: Path, out: Path, images: Iterable[Floats]) -> None:
    """Write `out`, with the operators TO_INTEGERS between DequantizeLinear and QuantizeLinear (QDQ format)."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static  # type: ignore[import-untyped]

    class Images(CalibrationDataReader):  # type: ignore[misc]
        """Calibration images, one at a time."""

        def __init__(self) -> None:
            self.images: Iterator[Floats] = iter(images)

        def get_next(self) -> dict[str, Any] | None:
            image = next(self.images, None)
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

    # Layers have the same names in both files.
    source, model = onnx.load(exact), onnx.load(rounded)
    # Values that both files have under one name; a quantised layer can only be restored if its inputs are among them.
    weights = {tensor.name: tensor for tensor in source.graph.initializer}
    makers = {(name, node.name, node.op_type) for node in source.graph.node for name in node.output}
    values = {INPUT, *(name for node in model.graph.node for name in node.output if (name, node.name, node.op_type) in makers)}
    inputs = {node.name: node.input for node in source.graph.node if set(node.input) <= values | weights.keys()}
    restored = [node for node in model.graph.node if node.name in layers and node.name in inputs]
    for node in restored:
        node.input[:] = [f'{name} of {node.name}' if name in weights else name for name in inputs[node.name]]
        for name in weights.keys() & set(inputs[node.name]):  # under a new name: other layers may use the quantised one
            model.graph.initializer.add().CopyFrom(weights[name])
            model.graph.initializer[-1].name = f'{name} of {node.name}'
    # Float operators after a restored layer skip its quantised output.
    of_restored = {node.output[0] for node in restored}
    outputs = {rounded: name for name, rounded in dequantised_names(model).items() if name in of_restored}
    for node in model.graph.node:
        if node.op_type not in TO_INTEGERS:
            node.input[:] = [outputs.get(name, name) for name in node.input]
    onnx.save(model, rounded)
    return [node.name for node in restored]


def dequantised_names(model: Any) -> dict[str, str]:
    """Names of quantised values -> names of their outputs of DequantizeLinear."""
    # A value passes QuantizeLinear, then DequantizeLinear.
    back = {node.input[0]: node.output[0] for node in model.graph.node if node.op_type == 'DequantizeLinear'}
    nodes = [node for node in model.graph.node if node.op_type == 'QuantizeLinear']
    return {node.input[0]: back[node.output[0]] for node in nodes if node.output[0] in back}


def measure_losses(exact: Path, rounded: Path, images: Iterable[Floats]) -> dict[str, float]:
    """Loss of each layer in integers with exact inputs: mean squared error over mean square of its output.

    Inputs and weights are rounded, and the output once more. Both networks become one graph, in which quantised layers get the
    outputs of the preceding exact ones.
    """
    import onnx
    import onnx.compose

    # Both networks in one graph: inputs of quantised layers are redirected to exact values, so that losses do not accumulate.
    both, other = onnx.load(exact), onnx.compose.add_prefix(onnx.load(rounded), ROUNDED)
    values = {INPUT, *(name for node in both.graph.node for name in node.output)}
    layers = {node.name: node.output[0] for node in both.graph.node if node.op_type in LAYERS}
    for node in other.graph.node:
        for place, name in enumerate(node.input):
            value = name.removeprefix(ROUNDED)
            if value in values and (node.op_type == 'QuantizeLinear' or value == INPUT):
                node.input[place] = value
    quantised = {node.name.removeprefix(ROUNDED): node.output[0] for node in other.graph.node if node.op_type in LAYERS}
    both.graph.node.extend(other.graph.node)
    both.graph.initializer.extend(other.graph.initializer)
    domains = {opset.domain for opset in both.opset_import}
    both.opset_import.extend(opset for opset in other.opset_import if opset.domain not in domains)
    # Per layer: exact output, output from rounded inputs and weights, and that output rounded again.
    dequantised = dequantised_names(both)
    outputs_of = {
        name: (layers[name], quantised[name], dequantised.get(layers[name], layers[name]))
        for name in layers
        if name in quantised
    }
    compute = inner_values(both, list(dict.fromkeys(name for names in outputs_of.values() for name in names)))
    errors, squares = dict.fromkeys(outputs_of, 0.0), dict.fromkeys(outputs_of, 0.0)
    # Sums over images, then the ratio: images with small activations count less.
    for image in images:
        computed = compute(image[None])
        for name, outputs in outputs_of.items():
            exact_output, *rounded_outputs = (computed[output] for output in outputs)
            errors[name] += sum(float(np.square(exact_output - output).mean()) for output in rounded_outputs)
            squares[name] += float(np.square(exact_output).mean())
    return {name: errors[name] / squares[name] for name in outputs_of if squares[name]}


def inner_values(model: Any, names: Sequence[str]) -> Callable[[Floats], dict[str, Any]]:
    """Function from prepared images to the inner values `names` of a network without layer fusion; changes `model`."""
    import onnx

    outputs = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in outputs)
    # Without fusion, since fused layers have no inner values.
    session = onnx_session(model.SerializeToString(), fused=False)
    return lambda images: dict(zip(names, session.run(names, {INPUT: images}), strict=True))
