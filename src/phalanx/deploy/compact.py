"""Exported networks in fewer bits: float16, or 8-bit integers calibrated on images. Files of ONNX in, files of ONNX out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from phalanx.runtime.prepare import Floats
from phalanx.runtime.session import INPUT

Precision = Literal['fp32', 'fp16', 'int8']
# What onnxruntime computes in float32 alone, on CPUs at least.
IN_FLOAT = ('Resize', 'NonMaxSuppression', 'TopK')
TO_INTEGERS = ('Conv', 'MatMul', 'Gemm', 'Add', 'Mul', 'Concat', 'MaxPool', 'Relu')


def check(file: Path, precision: Precision) -> None:
    """Raises ValueError for a network that has no form in this precision."""
    import onnx  # it comes with the extra `export`

    operators = {node.op_type for node in onnx.load(file).graph.node}
    if 'Loop' in operators:  # what is inside would stay in float32
        raise ValueError('the network decodes step by step, in a loop that has no form in fewer bits; use fp32')
    if 'LSTM' in operators and precision == 'fp16':  # and ends the process when it meets one
        raise ValueError('onnxruntime has no LSTM in float16; use fp32 or int8')


def halve(file: Path) -> None:
    """Turns the weights and most operations of a file into float16; input and outputs stay float32."""
    import onnx
    from onnxruntime.transformers.float16 import (  # type: ignore[import-untyped]
        DEFAULT_OP_BLOCK_LIST,
        convert_float_to_float16,
    )

    blocked = [*DEFAULT_OP_BLOCK_LIST, *IN_FLOAT]
    onnx.save(convert_float_to_float16(onnx.load(file), keep_io_types=True, op_block_list=blocked), file)


def quantise(file: Path, images: Iterable[Floats]) -> None:
    """Turns weights, per channel, and activations of a file into 8-bit integers, the ranges of these being those of `images`.

    `images` [3, H, W] are prepared as the network takes them.
    """
    from onnxruntime.quantization import (  # type: ignore[import-untyped]
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process  # type: ignore[import-untyped]

    class Images(CalibrationDataReader):  # type: ignore[misc]
        """One image at a time, as onnxruntime asks for them."""

        def __init__(self) -> None:
            self.left: Iterator[Floats] = iter(images)

        def get_next(self) -> dict[str, Any] | None:
            image = next(self.left, None)
            return None if image is None else {INPUT: image[None]}

    with tempfile.TemporaryDirectory(dir=file.parent) as aside:
        folded = Path(aside) / 'folded.onnx'  # batch norms in the convolutions before them
        quant_pre_process(file, folded, skip_symbolic_shape=True)
        quantize_static(
            folded,
            file,
            Images(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(TO_INTEGERS),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
