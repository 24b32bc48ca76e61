"""Localisation of the first layer in which an ONNX file differs from its network."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx

from phalanx.deploy.compact import inner_values


def relative_difference(
    actual: npt.NDArray[np.float32], expected: npt.NDArray[np.float32], *, by_row: bool = False
) -> npt.NDArray[np.float32]:
    """Differences of numbers, each relative to 1 + the magnitude of the expected one, or `by_row` to the largest of its row."""
    magnitudes = np.abs(expected)
    scales = 1 + (magnitudes.max(-1, keepdims=True) if by_row else magnitudes)
    difference: npt.NDArray[np.float32] = np.abs(actual - expected) / scales
    return difference


class Recorder(fx.Interpreter):
    """Interpreter of traced operations that records their outputs."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__(program.module(check_guards=False))  # guards check sizes, which the file does not
        self.values: dict[str, Tensor] = {}
        self.layers: dict[str, str] = {}  # where in the network

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and value.is_floating_point():
            self.values[n.name] = value
            # The innermost module that the operation belongs to.
            modules = list(n.meta.get('nn_module_stack', {}).values())
            self.layers[n.name] = f'{(modules and modules[-1][0]) or "the network"} ({n.target})'
        return value


@torch.no_grad()
def describe_first_difference(program: torch.export.ExportedProgram, file: Path, images: Tensor, tolerance: float) -> str:
    """Describe the first layer whose output in `file` differs for `images` by more than `tolerance` times 1 + its size.

    torch's exporter names values in the file after the operations of `program`; fused ones have no counterpart there.
    """
    import onnx  # it comes with the extra `export`

    recorder = Recorder(program)
    recorder.run(images)
    model = onnx.load(file)
    computed = [name for node in model.graph.node for name in node.output if name in recorder.values]
    # In the order of the file, so the first difference is the cause of the later ones.
    for name, computed_value in inner_values(model, computed)(images.numpy()).items():
        right = recorder.values[name].numpy()
        difference = float(relative_difference(computed_value, right).max(initial=0))
        if not difference <= tolerance:
            return f'the first layer that differs is {recorder.layers[name]}, by {difference:.1e}'
    return 'no single layer differs: the difference comes from operations that were fused before or after tracing'
