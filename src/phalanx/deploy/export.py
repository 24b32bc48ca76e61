"""Export of a trained network to ONNX, OpenVINO or torch, with a guide in its metadata and in a JSON file beside it.

Steps: run the network on evaluation samples in several sizes; fuse, trace and write it; run the file on the same samples;
compare; add the guide, which `phalanx.runtime` reads.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import phalanx
from phalanx.config.read import to_plain
from phalanx.data.samples import Draw, SampleError
from phalanx.deploy import compact
from phalanx.deploy.compact import Precision
from phalanx.deploy.difference import describe_first_difference, relative_difference
from phalanx.deploy.formats import AXES, FORMATS
from phalanx.deploy.writing import (
    LEAST,
    Arrays,
    ExportError,
    Shapes,
    convert_to_openvino,
    program_shapes,
    render_readme,
    run_onnx,
    trace,
    write_guide,
    write_onnx,
)
from phalanx.engine.initial import load_trained
from phalanx.engine.job import Job
from phalanx.families.distillation import student_of
from phalanx.families.export import Export
from phalanx.families.task import Task
from phalanx.runtime.model import FAMILIES
from phalanx.runtime.prepare import Floats
from phalanx.runtime.session import FORMAT, INPUT, open_model
from phalanx.system.errors import RequestError

SAMPLES = 3  # evaluation samples for the check of the file
OTHER_SIZES = (0.75, 1.25)  # factors of variable sides, for further checks
BLANKS = ((64, 64), (64, 640), (640, 64))  # height and width of images that show which sides a recipe fixes
CALIBRATION = 64  # training images for the ranges of 8-bit integers
TOLERANCE = 1e-4  # maximum difference relative to 1 + the magnitude of the number
TOLERANCES = {'fp32': TOLERANCE, 'fp16': 2e-2, 'int8': float('inf')}  # int8: evaluate the file instead; NaN always fails
OPENVINO_TOLERANCE = 1e-3  # it sums in another order: boxes of PP-YOLOE differed by 1.9e-4
TIES = 1e-3  # share of integer outputs (choices) that may differ


@runtime_checkable
class Fusable(Protocol):
    """Network with a re-parameterised form, for evaluation only."""

    def switch_to_deploy(self) -> nn.Module:
        """Change this network to that form and return it."""


@dataclass(frozen=True)
class Options:
    """Options of an export."""

    weights: Path | None = None  # None: the best of the run
    image_size: tuple[int, int] | None = None  # height and width of the images for tracing and checking
    dynamic: tuple[str, ...] | None = None  # names of AXES; None: all that vary between images of the family
    post_processing: bool = False  # include as much post-processing in the graph as possible
    precision: Precision = 'fp32'
    opset: int | None = None  # of ONNX's operators; None: as torch recommends
    check: bool = True


@dataclass(frozen=True)
class Written:
    """Files that `export` wrote, and their differences from the network."""

    file: Path
    guide: Path
    readme: Path
    shapes: Shapes  # of the input and the outputs
    differences: dict[str, float]  # of each output, see TOLERANCE; empty when not checked


def export(job: Job, out: Path, options: Options) -> Written:
    """Write the network of a run to `out` and its guide to the .json file of that name; both or neither.

    Raises CheckpointError without weights, ExportError if the network cannot be traced or the file computes other outputs,
    RequestError if the network cannot be built or does not accept the requested image size, or if evaluation samples are needed
    and missing.
    """
    try:
        model = job.task.model()
        load_trained(model, job.task, options.weights or job.folder, raw=job.recipe.ema is None).announce()
        model = student_of(model.eval())
        exported = job.task.export(model, post_processing=options.post_processing)
    except (ValueError, FileNotFoundError) as error:  # of the data set or dictionary that names the classes
        raise RequestError(str(error)) from None
    # Trials and their expected outputs, before anything is fused.
    varying = variable_dimensions(exported, options.dynamic)
    if options.image_size is not None:
        check_requested_size(job.task, exported, options.image_size, varying)
    least = {axis: LEAST[axis] for axis in varying} if out.suffix == FORMATS['torch_export'] else {}
    trials = make_trials(example_images(job.task, options.image_size, options.check), varying, least)
    expected = [run_network(exported.network, images) for images in trials]
    if isinstance(model, Fusable):
        # Outputs are compared with those before fusing, so that a mistake in fusing shows up, too.
        model.switch_to_deploy()
    program = trace(exported.network, trials[0], varying)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Write and check in a folder aside, then move the files into place: both or neither.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix='.export') as aside:
        file, guide = (Path(aside) / f'{out.stem}{suffix}' for suffix in (FORMATS['onnx'], '.json'))
        if out.suffix == FORMATS['torch_export']:
            file = file.with_suffix(out.suffix)
            torch.export.save(program, file)
            program = torch.export.load(file)
            shapes = program_shapes(program, list(exported.outputs), varying)
            actual = [run_network(program.module(), images) for images in trials]
            differences = compare(exported, expected, actual) if options.check else {}
        else:
            shapes, differences = write_checked_onnx(job, exported, program, varying, file, trials, expected, options)
        facts = description(job, exported, out, shapes, differences, options)
        write_guide(file, facts)
        guide.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + '\n')
        readme = guide.with_suffix('.md')
        readme.write_text(render_readme(facts, varying, trials[0].shape))
        if out.suffix == FORMATS['openvino']:
            file = convert_to_openvino(file, facts)
            if options.check and exported.in_graph is None:  # OpenVINO may order boxes of equal score differently
                run = open_model(file, 0).run
                actual = [[run(images.numpy())[name] for name in exported.outputs] for images in trials]
                compare(exported, expected, actual, max(OPENVINO_TOLERANCE, TOLERANCES[options.precision]))
            file.with_suffix('.bin').replace(out.with_suffix('.bin'))
        guide, readme = guide.replace(out.with_suffix('.json')), readme.replace(out.with_name(f'{out.name}.md'))
        return Written(file.replace(out), guide, readme, shapes, differences)


def write_checked_onnx(
    job: Job,
    exported: Export,
    program: torch.export.ExportedProgram,
    varying: Mapping[int, int],
    file: Path,
    trials: Sequence[Tensor],
    expected: Sequence[Arrays],
    options: Options,
) -> tuple[Shapes, dict[str, float]]:
    """Write `file`; returns its shapes, and its differences from the outputs `expected` for `trials`. Raises ExportError."""
    operations = write_onnx(program, list(exported.outputs), varying, file, options.opset)

    def differences(tolerance: float) -> tuple[Shapes, dict[str, float]]:
        shapes, actual = run_onnx(file, trials)
        try:
            return shapes, compare(exported, expected, actual, tolerance) if options.check else {}
        except ExportError as error:
            raise ExportError(f'{error}\n{describe_first_difference(operations, file, trials[0], tolerance)}') from None

    # First in float32, where any difference is a fault of the export; then in the requested precision.
    shapes, measured = differences(TOLERANCE)
    if options.precision != 'fp32':
        lower_precision(job, exported, file, options, shapes[INPUT])
        shapes, measured = differences(TOLERANCES[options.precision])
    # Post-processing comes last: its outputs (boxes after NMS) cannot be compared one by one.
    if exported.in_graph is not None:
        import onnx  # it comes with the extra `export`

        onnx.save(exported.in_graph.add(onnx.load(file)), file)
        shapes, _ = run_onnx(file, trials[:1])
    return shapes, measured


def example_images(task: Task, image_size: tuple[int, int] | None, check: bool) -> Tensor:
    """Inputs for tracing, [B, 3, H, W]: evaluation samples resized to one size; zeros if they are not needed."""
    if image_size is not None and not check:
        return torch.zeros(1, task.bands.count if task.bands else 3, *image_size)
    try:
        # Real samples, since random images make outputs that are all background.
        dataset = task.dataset('eval')
        samples = [dataset[Draw(index, 0, 0, 0)] for index in range(min(SAMPLES, len(dataset)))]
    except (ValueError, OSError, SampleError) as error:
        cure = '--image_size HEIGHT,WIDTH --no_check exports without'
        raise RequestError(f'the evaluation samples cannot be read: {error}\n{cure}') from None
    inputs = [task.network_input(task.collate([sample])) for sample in samples]
    sides = image_size or inputs[0].shape[2:]
    return torch.cat([F.interpolate(images, sides) for images in inputs])


def check_requested_size(task: Task, exported: Export, image_size: tuple[int, int], varying: Collection[int]) -> None:
    """Raise RequestError if images reach the network with another height or width, whatever theirs is, than the file takes."""
    views = exported.reading.get('inference', {})
    if views.get('window') or views.get('scales', (1.0,)) != (1.0,):  # which have sizes of their own
        return
    kind = (task.bands.count, task.bands.dtype) if task.bands else (3, np.uint8)
    blanks = [np.zeros((*size, kind[0]), kind[1]) for size in BLANKS]
    inputs = [task.network_input(task.collate([task.request(blank)])).shape for blank in blanks]
    for axis, side in zip((2, 3), image_size, strict=True):
        prepared = {shape[axis] for shape in inputs}
        if axis not in varying and len(prepared) == 1 and side not in prepared:
            name = next(name for name, number in AXES.items() if number == axis)
            raise RequestError(
                f'--image_size {",".join(map(str, image_size))}: the recipe gives each image a {name} of {prepared.pop()}, '
                'which such a file refuses; --set changes the recipe (image_size, or target_size in eval_transforms)'
            )


def variable_dimensions(exported: Export, dynamic: Sequence[str] | None) -> dict[int, int]:
    """Variable dimensions of the input -> the number that each must be a multiple of. Raises RequestError."""
    possible = {**({} if exported.in_graph else {AXES['batch']: 1}), **exported.dynamic}
    if dynamic is None:
        return possible
    if fixed := [name for name in dynamic if AXES[name] not in possible]:
        free = [name for name, axis in AXES.items() if axis in possible]
        one = 'with this post-processing, the file takes one image at a time'
        cause = one if 'batch' in fixed else f'all images reach this network with the same {" and ".join(fixed)}'
        raise RequestError(f'--dynamic {",".join(dynamic)}: {cause}; only {", ".join(free) or "none"} may vary')
    return {axis: possible[axis] for axis in map(AXES.__getitem__, dynamic)}


def make_trials(images: Tensor, varying: Mapping[int, int], least: Mapping[int, int]) -> list[Tensor]:
    """Trials: `images`, and one of them in OTHER_SIZES where sides may vary; sides below `least` are enlarged."""
    # A fixed batch of 1: one trial per image.
    if 0 not in varying:
        return [trial for image in torch.split(images, 1) for trial in make_trials(image, {0: 1, **varying}, least)]
    images = F.interpolate(images, [max(images.shape[axis], least.get(axis, 1)) for axis in (2, 3)])
    shapes = []
    # Other sizes show whether a size was baked into the graph.
    for share in OTHER_SIZES if set(varying) & {2, 3} else ():
        sides = [round(images.shape[axis] * share) if axis in varying else images.shape[axis] for axis in (2, 3)]
        steps = [varying.get(axis, 1) for axis in (2, 3)]
        shapes.append(
            [-(-max(side, least.get(2 + n, 1)) // step) * step for n, (side, step) in enumerate(zip(sides, steps, strict=True))]
        )
    return [images, *(F.interpolate(images[:1], shape) for shape in shapes)]


@torch.no_grad()
def run_network(network: nn.Module, images: Tensor) -> Arrays:
    """Outputs of `network` for `images`. Raises RequestError if it does not accept their size."""
    try:
        outputs = network(images)
    except (ValueError, RuntimeError) as error:
        H, W = images.shape[2:]
        raise RequestError(f'the network does not accept images of height {H} and width {W}: {error}') from None
    return [output.numpy() for output in ((outputs,) if isinstance(outputs, Tensor) else outputs)]


def lower_precision(job: Job, exported: Export, file: Path, options: Options, shape: Sequence[int | str]) -> None:
    """Convert the network in a file, which takes images of this `shape`, to the requested precision. Raises ExportError."""
    try:
        compact.check(file, options.precision)
        if options.precision == 'fp16':
            compact.to_float16(file)
        else:
            for layer, loss in compact.quantise(file, calibration(job, exported, shape)).items():
                print(f'{layer} stays in float: in 8 bits it would lose {loss:.1%} of its output', file=sys.stderr)
    except (ValueError, RuntimeError, OSError, SampleError) as error:
        raise ExportError(f'--precision {options.precision}: {error}') from None


def calibration(job: Job, exported: Export, shape: Sequence[int | str]) -> Iterator[Floats]:
    """CALIBRATION training images, spread over the data set, prepared as inputs of a file with this `shape`.

    They are resized where it fixes a side that differs between images. Raises SampleError.
    """
    # Prepared by the runtime itself, so that ranges are those of its inputs.
    family = FAMILIES[job.resolved.value['task'].value]({'preparation': exported.preparation, 'reading': exported.reading})
    dataset = job.task.dataset('train')
    step = max(1, len(dataset) // CALIBRATION)
    for index in range(0, len(dataset), step)[:CALIBRATION]:
        images = torch.from_numpy(family.prepare(dataset.original(Draw(index, 0, 0, job.recipe.train.seed))))[None]
        sides = [side if isinstance(side, int) else own for side, own in zip(shape[2:], images.shape[2:], strict=True)]
        yield F.interpolate(images, sides)[0].numpy()


def compare(
    exported: Export, expected: Sequence[Arrays], actual: Sequence[Arrays], tolerance: float = TOLERANCE
) -> dict[str, float]:
    """Largest difference of each output over the trials. Raises ExportError if one is above `tolerance`.

    For integers (choices), the share that differs, up to TIES: two classes may be equally likely. Outputs without an order are
    compared with the most similar ones, those of the network with those of the file and vice versa. Where the network rounds
    places, half of the rows decide: a mistake in the file would change all. In half precision, numbers are compared with the
    largest of their row: an edge of a box that is near 0 is no more exact than the others.
    """
    differences, limits = dict.fromkeys(exported.outputs, 0.0), dict.fromkeys(exported.outputs, tolerance)
    decisive = dict(differences)
    pairs = list(zip(expected, actual, strict=True))
    if exported.is_set:
        pairs = [
            pair
            for right, computed in pairs
            for pair in ((right, most_similar(computed, right)), (most_similar(right, computed), computed))
        ]
    for references, results in pairs:
        for name, right, computed in zip(exported.outputs, references, results, strict=True):
            if right.dtype.kind in 'iu':
                largest, limits[name] = float((right != computed).mean()), max(tolerance, TIES)
                counted = largest
            else:
                rows = relative_difference(computed, right, by_row=tolerance >= TOLERANCES['fp16']).max(-1)
                largest = float(rows.max())
                counted = float(np.median(rows)) if exported.is_rounded else largest
            # A NaN stays one.
            differences[name] = float(np.maximum(differences[name], largest))
            decisive[name] = float(np.maximum(decisive[name], counted))
    if differing_outputs := {name: value for name, value in decisive.items() if not value <= limits[name]}:
        differing = ', '.join(f'{name} by {value:.1e}' for name, value in differing_outputs.items())
        raise ExportError(
            f'the file differs from the network in {differing}, above {tolerance:g}; nothing is written '
            '(for a network that has hardly trained, rounding may matter: --no_check writes it without the comparison)'
        )
    return differences


def most_similar(outputs: Arrays, others: Arrays) -> Arrays:
    """For each row of axis 1 in `others`, which may be in another order, the row of `outputs` that differs least from it."""
    rows, wanted = np.concatenate(outputs, -1), np.concatenate(others, -1)
    nearest = [
        [int(relative_difference(own, one).max(-1).argmin()) for one in ones] for own, ones in zip(rows, wanted, strict=True)
    ]
    return [np.take_along_axis(output, np.array(nearest)[..., None], 1) for output in outputs]


def description(
    job: Job, exported: Export, out: Path, shapes: Shapes, differences: dict[str, float], options: Options
) -> dict[str, Any]:
    """Guide of the file: everything that its users need."""
    recipe = job.resolved.value
    outputs = exported.in_graph.outputs if exported.in_graph else exported.outputs
    return {
        'format': FORMAT,
        'file': out.name,
        'phalanx': phalanx.__version__,
        'run': job.name,
        'recipe': hashlib.sha256(json.dumps(to_plain(job.resolved), sort_keys=True).encode()).hexdigest()[:12],
        'metric': best_metric(job) if options.weights is None else None,
        'task': recipe['task'].value,
        'model': recipe['model'].value['name'].value,
        'precision': options.precision,
        'input': {'name': INPUT, 'type': 'float32', 'shape': shapes[INPUT]},
        'preparation': {
            'values': '(value / 255 - mean) / std for each channel, in the order of `channels`',
            **exported.preparation,
        },
        'outputs': [{'name': name, 'shape': shapes[name], 'meaning': meaning} for name, meaning in outputs.items()],
        'reading': dict(exported.reading),
        'largest_differences': differences,
    }


def best_metric(job: Job) -> dict[str, Any] | None:
    """Main metric of the best weights from the summary of the run; None while it is running, or if it never evaluated."""
    try:
        # Written at the end of a run.
        summary = json.loads((job.folder / 'summary.json').read_text())
    except FileNotFoundError:
        return None
    if summary['best'] is None:
        return None
    return {'name': job.task.main_metric, 'value': summary['best'], 'step': summary['best_step']}
