"""Writers of exported files: tracing with torch.export; ONNX, OpenVINO and torch formats; their README."""

import contextlib
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jinja2 import Environment, StrictUndefined
from torch import Tensor, nn

from phalanx.deploy.formats import AXES
from phalanx.runtime.session import GUIDE, INPUT, onnx_session

NAMES = {0: ('batch', ''), 2: ('height', 'rows'), 3: ('width', 'columns')}  # names of a size, and of the number of steps in it
TRACED = {2: 192, 3: 256}  # minimum variable sides in tracing: a coarse map one pixel wide would be a special case
LARGEST_BATCH = 8  # in TensorRT's ranges
LEAST = {0: 1, 2: 96, 3: 128}  # minimum sizes in torch's own format; other formats do not enforce them

Arrays = list[npt.NDArray[np.float32]]
Shapes = dict[str, list[int | str]]  # of the input and the outputs, by name


class ExportError(Exception):
    """Error for a file that does not compute the outputs of its network."""


@torch.no_grad()
def trace(network: nn.Module, images: Tensor, varying: Mapping[int, int]) -> torch.export.ExportedProgram:
    """Trace `network` for images of this size, with variable sizes in the dimensions `varying`. Raises ExportError."""
    shape, names = [1, *images.shape[1:]], {axis: name for name, axis in AXES.items()}
    # torch.export treats sizes 0 and 1 as constants: trace with larger ones.
    dims: dict[int, Any] = {}
    for axis, step in varying.items():
        least = TRACED.get(axis, 2)  # from a batch of 1 torch would infer a constant
        shape[axis] = -(-max(shape[axis], least) // step) * step
        dims[axis] = step * torch.export.Dim(names[axis], min=-(-LEAST[axis] // step))
    try:
        with _sizes_of_pooling():
            return torch.export.export(network, (images.new_zeros(shape),), dynamic_shapes=(dims,))
    except (ValueError, RuntimeError) as error:
        axes = ','.join(names[axis] for axis in varying)
        cure = '' if set(varying) <= {0} else '\n--dynamic batch --image_size HEIGHT,WIDTH exports it for one size'
        raise ExportError(
            f'torch cannot trace the network with variable {axes}: {str(error).partition(chr(10))[0]}{cure}'
        ) from None


@contextlib.contextmanager
def _sizes_of_pooling() -> Iterator[None]:
    """Let pooling of variable sizes ask nothing about them that is known."""
    meta: Any = torch._meta_registrations
    own = meta.pooling_output_shape_pad_lr
    meta.pooling_output_shape_pad_lr = pooled_size
    try:
        yield
    finally:
        meta.pooling_output_shape_pad_lr = own


def pooled_size(size: int, kernel: int, left: int, right: int, stride: int, dilation: int, ceil_mode: bool) -> int:
    """Size after pooling, as torch computes it.

    torch 2.11 asks whether the division leaves a remainder, and all releases ask whether a window that `ceil_mode` adds starts
    behind the input; they take the answer for one size as a condition on all. Only windows far apart can start there.
    """
    reach = dilation * (kernel - 1) + 1
    windows = (size + left + right - reach + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and stride + right > reach and (windows - 1) * stride >= size + left:
        windows -= 1
    return windows


def write_onnx(
    network: torch.export.ExportedProgram,
    outputs: Sequence[str],
    varying: Mapping[int, int],
    file: Path,
    opset: int | None = None,
) -> torch.export.ExportedProgram:
    """Write a traced network, weights included; returns the operations in the file.

    `opset`: the version of ONNX's operators, from OLDEST_OPSET on; None: the one that torch recommends.
    """
    with _quiet():
        program = torch.onnx.export(
            network, dynamo=True, input_names=[INPUT], output_names=list(outputs), opset_version=opset, verbose=False
        )
    assert program is not None and program.exported_program is not None
    program.save(file, external_data=False)
    _name_sizes(file, varying)
    return program.exported_program


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context without warnings, logged or not: torch and onnxscript have remarks on their own code."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action='ignore'):
            yield
    finally:
        logging.disable(before)


def _name_sizes(file: Path, varying: Mapping[int, int]) -> None:
    """Rename variable sizes to batch, height and width, or rows and columns of steps; torch calls them s77 and so on."""
    import onnx  # it comes with the extra `export`

    model = onnx.load(file)
    sides = model.graph.input[0].type.tensor_type.shape.dim
    # torch names sizes s77 or 32*s77; users see batch, height and width, or rows and columns of steps.
    names = _names({axis: sides[axis].dim_param for axis in varying}, varying)
    for value in (*model.graph.input, *model.graph.output):
        for side in value.type.tensor_type.shape.dim:
            if side.dim_param:
                side.dim_param = _rename_size(side.dim_param, names)
    onnx.save(model, file)


def _names(symbols: Mapping[int, str], varying: Mapping[int, int]) -> dict[str, str]:
    """Names for torch's symbols of input sizes; `symbols` by dimension, `32*s77` or `s77`."""
    return {symbols[axis].rpartition('*')[2]: NAMES[axis][step > 1] for axis, step in varying.items()}


def _rename_size(size: str, names: Mapping[str, str]) -> str:
    return re.sub(r'\w+', lambda word: names.get(word[0], word[0]), size)


def program_shapes(program: torch.export.ExportedProgram, outputs: Sequence[str], varying: Mapping[int, int]) -> Shapes:
    """Shapes of a program's input and outputs, by name."""
    # Each node of the traced graph holds the symbolic shape of its value.
    values = {
        node.name: node.meta['val'].shape
        for node in program.graph.nodes
        if 'val' in node.meta and hasattr(node.meta['val'], 'shape')
    }
    sizes = values[program.graph_signature.user_inputs[0]]
    names = _names({axis: str(sizes[axis]) for axis in varying}, varying)
    shapes = [sizes, *(values[name] for name in program.graph_signature.user_outputs)]
    return {
        name: [side if isinstance(side, int) else _rename_size(str(side), names) for side in shape]
        for name, shape in zip((INPUT, *outputs), shapes, strict=True)
    }


def write_guide(file: Path, guide: Mapping[str, Any]) -> None:
    """Write the guide into the metadata of a file."""
    if file.suffix == '.pt2':
        torch.export.save(torch.export.load(file), file, extra_files={f'{GUIDE}.json': json.dumps(guide, ensure_ascii=False)})
        return
    import onnx

    model = onnx.load(file)
    onnx.helper.set_model_props(model, {GUIDE: json.dumps(guide, ensure_ascii=False)})
    onnx.save(model, file)


def render_readme(guide: Mapping[str, Any], varying: Mapping[int, int], shape: Sequence[int]) -> str:
    """Render the README beside a file, for users without Phalanx.

    `varying` as in `Export.dynamic`; `shape` [4] of a typical input.
    """
    template = files('phalanx.deploy').joinpath('readme.md').read_text(encoding='utf-8')
    file = Path(guide['file'])
    page = Environment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(template)
    return page.render(
        guide=guide, stem=file.stem, suffix=file.suffix, least=LEAST, trtexec_shapes=trtexec_shapes(varying, shape)
    )


def trtexec_shapes(varying: Mapping[int, int], shape: Sequence[int]) -> str:
    """Options of trtexec for variable sizes: half to twice the sides of `shape`, batches of 1 to LARGEST_BATCH."""
    if not varying:
        return ''
    ranges = {'min': list(shape), 'opt': list(shape), 'max': list(shape)}
    for axis, step in varying.items():
        # Sides in multiples of their step; TensorRT optimises for `opt`.
        least, most = (1, LARGEST_BATCH) if axis == 0 else (-(-shape[axis] // (2 * step)) * step, 2 * shape[axis])
        ranges['min'][axis], ranges['max'][axis] = least, most
        ranges['opt'][axis] = 1 if axis == 0 else shape[axis]
    return ''.join(f' --{kind}Shapes=images:{"x".join(map(str, sides))}' for kind, sides in ranges.items())


def convert_to_openvino(file: Path, guide: Mapping[str, Any]) -> Path:
    """Convert an ONNX file to OpenVINO, with the same guide: an .xml file, and a .bin file beside it."""
    import openvino

    model = openvino.Core().read_model(file)  # not openvino.convert_model, which also sends telemetry
    # Runtime info is OpenVINO's metadata; weights stay float32.
    model.set_rt_info(json.dumps(guide, ensure_ascii=False), GUIDE)
    openvino.save_model(model, file.with_suffix('.xml'), compress_to_fp16=False)
    return file.with_suffix('.xml')


def run_onnx(file: Path, trials: Sequence[Tensor]) -> tuple[Shapes, list[Arrays]]:
    """Shapes of the input and outputs of a file, and the outputs of onnxruntime for each of the trials."""
    # The file as users run it, with fused layers.
    session = onnx_session(file)
    shapes = {node.name: node.shape for node in (*session.get_inputs(), *session.get_outputs())}
    return shapes, [session.run(None, {INPUT: images.numpy()}) for images in trials]
