"""`phalanx export`: the network of a trained run as an ONNX file, and a JSON file beside it that says how to use it."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import phalanx
from phalanx.config.arguments import Parser, add_assignments, add_offline, assignments
from phalanx.data.samples import Draw, SampleError
from phalanx.engine.runs import Job, open_job
from phalanx.families.task import Export, Task
from phalanx.system.errors import RequestError
from phalanx.weights.checkpoint import CheckpointError
from phalanx.weights.reading import load_weights

NEEDED = ('onnx', 'onnxruntime', 'onnxscript')
INPUT = 'images'
SAMPLES = 3  # of the evaluation, on which the file is checked
TOLERANCE = 1e-4  # largest difference, as a share of 1 + the size of the number

Arrays = list[npt.NDArray[np.float32]]


class ExportError(Exception):
    """The file that was made does not compute what the network computes."""


@runtime_checkable
class Fusable(Protocol):
    """A network that has a form with fewer operations, for evaluation alone."""

    def fuse(self) -> nn.Module:
        """This network, changed to that form."""


@dataclass(frozen=True)
class Written:
    """What `export` wrote, and how well it agrees."""

    file: Path
    guide: Path
    shapes: dict[str, list[int | str]]  # of the input and the outputs
    differences: dict[str, float]  # of each output, see TOLERANCE; empty when not checked


def command(words: Sequence[str]) -> int:
    """The exit status: 0 done, 1 the export failed. Raises ConfigError or RequestError."""
    about = 'Writes a trained network as ONNX, with a JSON file beside it that says how to use it.'
    parser = Parser('phalanx export', about, ['phalanx export runs/mine --out model.onnx'])
    parser.add_argument('run', metavar='RUN', help='a run folder, or a recipe with --weights')
    parser.add_argument('--weights', metavar='WEIGHTS', help='others than the best of the run, as `phalanx eval` takes them')
    parser.add_argument('--out', type=Path, metavar='FILE.onnx', help='what to write (default: model.onnx in the run folder)')
    parser.add_argument('--size', type=_size, metavar='W,H', help='of the images (default: as the first evaluation sample)')
    parser.add_argument('--no_check', action='store_true', help='do not compare with the network on evaluation samples')
    add_offline(parser)
    add_assignments(parser)
    given = parser.parse_args(words)
    if absent := [name for name in NEEDED if find_spec(name) is None]:
        raise RequestError(f'export needs {", ".join(absent)}: pip install "phalanx-vision[export]"')
    job = open_job(given.run, assignments(given))
    out = given.out or job.folder / 'model.onnx'
    if out.suffix != '.onnx':
        raise RequestError(f'--out {out}: the name of the file ends in .onnx')
    try:
        written = export(job, out, weights=given.weights, size=given.size, check=not given.no_check)
    except (CheckpointError, ExportError, OSError) as error:
        print(f'the export failed: {error}', file=sys.stderr)
        return 1
    _say(written)
    return 0


def export(job: Job, out: Path, *, weights: str | Path | None, size: tuple[int, int] | None, check: bool) -> Written:
    """Writes the network of a run to `out` and what must be known of it to the .json file of that name; both or neither.

    Raises CheckpointError when there are no weights, ExportError when the file computes something else, RequestError when the
    network cannot be built or takes no images of `size` (width, height), or when the evaluation samples are needed and absent.
    """
    try:
        model = job.task.model()
        load_weights(model, weights or job.folder)
        exported = job.task.export(model.eval())
    except (ValueError, FileNotFoundError) as error:  # of the data set or dictionary that names the classes
        raise RequestError(str(error)) from None
    images = examples(job.task, size, check)
    expected = answers(exported.network, images)  # before anything is fused
    if isinstance(model, Fusable):
        model.fuse()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix='.export') as aside:
        file, guide = Path(aside) / out.name, Path(aside) / out.with_suffix('.json').name
        write_onnx(exported, images, file)
        shapes, found = run_onnx(file, images)
        differences = compare(exported, expected, found) if check else {}
        guide.write_text(json.dumps(description(job, exported, out, shapes, differences), indent=1, ensure_ascii=False) + '\n')
        return Written(file.replace(out), guide.replace(out.with_suffix('.json')), shapes, differences)


def examples(task: Task[Any, Any, Any], size: tuple[int, int] | None, check: bool) -> Tensor:
    """What the network is shown, [B, 3, H, W]: evaluation samples, brought to one size; black when they are not needed."""
    if size is not None and not check:
        return torch.zeros(1, 3, size[1], size[0])
    try:
        dataset = task.dataset('eval')
        samples = [dataset[Draw(index, 0, 0, 0)] for index in range(min(SAMPLES, len(dataset)))]
    except (ValueError, OSError, SampleError) as error:
        raise RequestError(f'the evaluation samples cannot be read: {error}\n--size W,H --no-check exports without') from None
    inputs = [task.network_input(task.collate([sample])) for sample in samples]
    H, W = (size[1], size[0]) if size is not None else inputs[0].shape[2:]
    return torch.cat([F.interpolate(images, (H, W)) for images in inputs])


@torch.no_grad()
def answers(network: nn.Module, images: Tensor) -> Arrays:
    """The outputs of `network`. Raises RequestError when the images do not suit it."""
    try:
        outputs = network(images)
    except (ValueError, RuntimeError) as error:
        H, W = images.shape[2:]
        raise RequestError(f'the network takes no images of {W} x {H}: {error}') from None
    return [output.numpy() for output in ((outputs,) if isinstance(outputs, Tensor) else outputs)]


def write_onnx(exported: Export, images: Tensor, file: Path) -> None:
    """Writes the network for any number of images of the size of `images`, weights included."""
    two = images[:1].repeat(2, 1, 1, 1)  # of one image torch would conclude that there is always one
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # torch's about itself
        program = torch.onnx.export(
            exported.network,
            (two,),
            dynamo=True,
            input_names=[INPUT],
            output_names=list(exported.outputs),
            dynamic_shapes=({0: torch.export.Dim('batch')},),
            verbose=False,
        )
    assert program is not None
    program.save(file, external_data=False)


def run_onnx(file: Path, images: Tensor) -> tuple[dict[str, list[int | str]], Arrays]:
    """The shapes that a file names for its input and outputs, and what onnxruntime computes."""
    import onnxruntime  # type: ignore[import-untyped]  # optional: it comes with the extra `export`

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(file, options, providers=['CPUExecutionProvider'])
    shapes = {node.name: node.shape for node in (*session.get_inputs(), *session.get_outputs())}
    return shapes, session.run(None, {INPUT: images.numpy()})


def compare(exported: Export, expected: Arrays, found: Arrays) -> dict[str, float]:
    """The largest difference of each output. Raises ExportError when one is above TOLERANCE."""
    differences = {
        name: float((np.abs(ours - theirs) / (1 + np.abs(ours))).max())
        for name, ours, theirs in zip(exported.outputs, expected, found, strict=True)
    }
    if wrong := {name: value for name, value in differences.items() if not value <= TOLERANCE}:
        told = ', '.join(f'{name} by {value:.1e}' for name, value in wrong.items())
        raise ExportError(
            f'onnxruntime differs from the network in {told}, above {TOLERANCE:g}; nothing is written '
            '(of a network that has hardly trained the last bits may matter: --no_check writes it as it is)'
        )
    return differences


def description(
    job: Job, exported: Export, out: Path, shapes: dict[str, list[int | str]], differences: dict[str, float]
) -> dict[str, Any]:
    """What those who run the file must know."""
    recipe = job.resolved.value
    return {
        'file': out.name,
        'phalanx': phalanx.__version__,
        'task': recipe['task'].value,
        'model': recipe['model'].value['name'].value,
        'input': {'name': INPUT, 'type': 'float32', 'shape': shapes[INPUT]},
        'preparation': {
            'values': '(value / 255 - mean) / std for each channel, in the order of `channels`',
            **exported.preparation,
        },
        'outputs': [{'name': name, 'shape': shapes[name], 'meaning': meaning} for name, meaning in exported.outputs.items()],
        'reading': dict(exported.reading),
        'largest_differences': differences,
    }


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition(',')
    if not (width.isdigit() and height.isdigit() and int(width) and int(height)):
        raise argparse.ArgumentTypeError(f'{text!r} is not WIDTH,HEIGHT in pixels')
    return int(width), int(height)


def _say(written: Written) -> None:
    shapes = [f'{name} [{", ".join(map(str, shape))}]' for name, shape in written.shapes.items()]
    print(f'{written.file}: {written.file.stat().st_size / 2**20:.1f} MiB, {shapes[0]} -> {", ".join(shapes[1:])}')
    print(f'{written.guide}: how to prepare images and read the outputs')
    if written.differences:
        told = ', '.join(f'{name} by at most {value:.1e}' for name, value in written.differences.items())
        print(f'checked with onnxruntime on evaluation samples: differs in {told}')
    else:
        print('not checked')
