"""`phalanx export`: the network of a trained run as an ONNX, OpenVINO or torch file."""

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from shlex import quote

from phalanx.cli.deploy_options import export_parser
from phalanx.cli.notes import open_with_notes
from phalanx.cli.predict_options import parse_run
from phalanx.config.read import to_plain
from phalanx.deploy.export import Options, Written, export
from phalanx.deploy.exported import SUFFIXES, check_guide_place, parts_of
from phalanx.deploy.formats import FORMATS, OLDEST_OPSET
from phalanx.deploy.writing import ExportError, Shapes
from phalanx.engine.folder import describe_weights
from phalanx.engine.job import Job
from phalanx.paddle.options import EXPORTED, take_assigned, take_weights
from phalanx.report.trackers import Run, send_exports
from phalanx.system.disk import check_writable
from phalanx.system.errors import RequestError, RunError, describe_error
from phalanx.system.paths import parse_path

NEEDED = ('onnx', 'onnxruntime', 'onnxscript')


def command(words: Sequence[str]) -> int:
    """The exit status: 0 done, 1 the export failed. Raises ConfigError, RequestError or CheckpointError."""
    given, run, more, assigned = parse_run(export_parser(), words)
    if more:
        raise RequestError(f'{more[0]}: one run is exported at a time; values of keys follow --set')
    folders, assigned = take_assigned(take_weights(given, assigned), EXPORTED)
    # check packages and options before the network is built, which takes seconds
    if absent := [name for name in NEEDED if find_spec(name) is None]:
        raise RequestError(f'export needs {", ".join(absent)}: pip install "phalanx-vision[export]"')
    if given.format == 'openvino' and find_spec('openvino') is None:
        raise RequestError('--format openvino needs openvino: pip install "phalanx-vision[openvino]"')
    if given.format == 'torch_export' and (given.precision != 'fp32' or given.with_post_processing):
        raise RequestError('--format torch_export is the network in fp32 alone; use onnx or openvino for the rest')
    if given.opset is not None:
        import onnx  # it comes with the extra `export`

        newest = onnx.defs.onnx_opset_version()
        if not OLDEST_OPSET <= given.opset <= newest:
            raise RequestError(f'--opset {given.opset}: torch writes ONNX operators of version {OLDEST_OPSET} to {newest} only')
    # the suffix decides how the file is read later, so it must fit the format
    job = open_with_notes(run, assigned)
    out = given.out or (parse_path(folders[-1]) if folders else job.folder) / f'model{FORMATS[given.format]}'
    if out.suffix != FORMATS[given.format]:
        raise RequestError(f'--out {out}: with --format {given.format} the name of the file ends in {FORMATS[given.format]}')
    check_writable(out, '--out FILE writes the model elsewhere')
    check_guide_place(out)
    try:
        # export, with the check against the network inside
        options = Options(
            weights=given.weights,
            image_size=given.image_size,
            dynamic=given.dynamic,
            post_processing=given.with_post_processing,
            precision=given.precision,
            opset=given.opset,
            check=not given.no_check,
        )
        print(f'weights: {describe_weights(job, given.weights, raw=job.recipe.ema is None)}', file=sys.stderr)
        written = export(job, out, options)
    except (ExportError, OSError) as error:
        print(f'the export failed: {describe_error(error)}', file=sys.stderr)
        return 1
    _send_to_trackers(job, written)
    _print_written(written)
    if note := describe_free_sides(given.image_size, written.shapes):
        print(note)
    return 0


def describe_free_sides(image_size: tuple[int, int] | None, shapes: Shapes) -> str:
    """Note for `--image_size` on a file that takes images of other sizes, too; empty for other files."""
    sides = next(iter(shapes.values()))[2:]
    free = [str(side) for side in sides if isinstance(side, str)]
    if image_size is None or not free:
        return ''
    return f'note: {" and ".join(free)} may vary, --image_size is that of the check; --dynamic batch writes a file for it alone'


def _send_to_trackers(job: Job, written: Written) -> None:
    """Add the files to the run in the trackers that keep its weights, and to its bucket. Failures are warnings."""
    if (job.folder / 'summary.json').is_file():
        run = Run(job.name, job.folder, to_plain(job.resolved), 0, {})
        summary = json.loads((job.folder / 'summary.json').read_bytes())
        files = [*parts_of(written.file), written.guide]
        failed = send_exports(job.recipe.report.tracker_builders(), run, summary, files)
        for name, problem in failed.items():
            print(f'warning: the export was not sent to {name}: {problem}', file=sys.stderr)
    if job.mirror is not None and written.file.is_relative_to(job.folder):
        try:
            job.mirror.restore()
            job.mirror.publish()
            print(f'uploaded to {job.mirror.url / written.file.relative_to(job.folder)}')
        except (OSError, RunError) as error:
            print(f'warning: the export was not uploaded: {describe_error(error)}', file=sys.stderr)


def _print_written(written: Written) -> None:
    shapes = [f'{name} [{", ".join(map(str, shape))}]' for name, shape in written.shapes.items()]
    parts = parts_of(written.file)
    size = sum(part.stat().st_size for part in parts) / 2**20
    print(f'{" and ".join(map(str, parts))}: {size:.1f} MiB, {shapes[0]} -> {", ".join(shapes[1:])}')
    print(f'{written.guide}: how to prepare images and read the outputs; {written.readme.name}: how to run it')
    if written.differences:
        differing = ', '.join(f'{name} by at most {value:.1e}' for name, value in written.differences.items())
        print(f'checked on evaluation samples: differs from the network in {differing}')
    else:
        print('not checked')
    if written.file.suffix in SUFFIXES:
        print(f'next: phalanx serve {quote(str(written.file))}')
