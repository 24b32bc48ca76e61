"""Opening of exported network files: their guide, and a function from images to outputs."""

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.runtime.ppocr import named_outputs, published_guide
from phalanx.runtime.prepare import Floats

FORMAT = 1  # of the guide
GUIDE = 'phalanx'  # key of the guide in the metadata of a file
INPUT = 'images'
# Numbers in an input, 4 million pixels. onnxruntime retains the memory of larger ones, twice as much as needed: for a page of
# 4000 x 2816, PP-OCRv6's detector took 3.2 to 4.8 GB in 5.5 s, and without its arena 1.9 GB in 10.4 s, or 1.7 GB in 8.5 s if
# onnxruntime also keeps the layout of images, since each layer then allocates less (processor time, 2026-11-26).
MOST_IN_ARENA = 3 * 2**22
PARTS = ('phalanx', 'task', 'input', 'preparation', 'reading')  # required entries of the guide

Run = Callable[[Floats], dict[str, Any]]  # [B, 3, H, W] -> an array for each output
Opened = tuple[Mapping[str, str], list[int | str], Run]  # metadata, and the input shape, with names for variable sizes


class ArtifactError(Exception):
    """Error for a file that is not an exported model or does not accept an input. The message names file, reason and fix."""


class Session(NamedTuple):
    guide: Mapping[str, Any]
    run: Run


def open_model(file: Path, threads: int) -> Session:
    """Open the network in a file; 0 threads: one per core. Raises ArtifactError."""
    if file.is_dir():
        raise ArtifactError(f'{file}: is a folder; name the file in it that `phalanx export` wrote')
    if not file.is_file():
        raise ArtifactError(f'{file}: there is no such file')
    if file.suffix not in OPENERS:
        raise ArtifactError(f'{file}: is not one of {", ".join(OPENERS)}, which `phalanx export` writes')
    metadata, shape, compute = OPENERS[file.suffix](file, threads)
    published = None if GUIDE in metadata else published_guide(file, metadata)
    guide = published or parse_guide(metadata.get(GUIDE), file)

    def run(images: Floats) -> dict[str, Any]:
        check_shape(images.shape, shape, file)
        try:
            outputs = compute(images)
        except Exception as error:  # noqa: BLE001 - onnxruntime's have no other class in common
            size = f'{images.shape[3]} x {images.shape[2]}'
            raise ArtifactError(f'{file}: does not take images of {size}: {_first_line(error)}') from None
        try:
            return named_outputs(guide, *outputs.values()) if published else outputs
        except (TypeError, ValueError) as error:
            raise ArtifactError(f'{file}: is not the file that its name says: {_first_line(error)}') from None

    return Session(guide, run)


def open_with_onnxruntime(file: Path, threads: int) -> Opened:
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        raise ArtifactError(f'{file}: needs onnxruntime: pip install "phalanx-vision[runtime]"') from None
    try:
        session = onnx_session(file, threads)
    except Exception as error:  # noqa: BLE001 - as above
        cure = f'onnxruntime {onnxruntime.__version__} cannot read it; it is damaged, or made for a newer one'
        raise ArtifactError(f'{file}: {cure}: {_first_line(error)}') from None
    names, images_in = [output.name for output in session.get_outputs()], session.get_inputs()[0]
    # A second session without arena, made when the first large input comes.
    frugal = cache(partial(onnx_session, file, threads, arena=False))

    def run(images: Floats) -> dict[str, Any]:
        suitable = session if images.size <= MOST_IN_ARENA else frugal()
        return dict(zip(names, suitable.run(names, {images_in.name: images}), strict=True))

    return session.get_modelmeta().custom_metadata_map, images_in.shape, run


def onnx_session(model: Path | bytes, threads: int = 0, *, fused: bool = True, arena: bool = True) -> Any:
    """Session of onnxruntime for an ONNX file, or its content; without `fused`, layers are not fused.

    Without `arena` each layer allocates its memory from the system and frees it, and images keep their layout.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = options.enable_mem_pattern = arena
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_DISABLE_ALL if not fused else levels.ORT_ENABLE_ALL if arena else levels.ORT_ENABLE_EXTENDED
    )
    return onnxruntime.InferenceSession(model, options, providers=['CPUExecutionProvider'])


def open_with_openvino(file: Path, threads: int) -> Opened:
    try:
        import openvino
    except ImportError:
        raise ArtifactError(f'{file}: needs OpenVINO: pip install "phalanx-vision[openvino]"') from None
    core = openvino.Core()
    options = {'INFERENCE_PRECISION_HINT': 'f32', **({'INFERENCE_NUM_THREADS': threads} if threads else {})}
    try:
        model = core.read_model(file)
        compiled = core.compile_model(model, 'CPU', options)
    except RuntimeError as error:
        raise ArtifactError(f'{file}: OpenVINO cannot read it, or the .bin file beside it: {_first_line(error)}') from None
    names = [output.any_name for output in compiled.outputs]
    shape = [side.get_length() if side.is_static else '' for side in compiled.input(0).partial_shape]

    def run(images: Floats) -> dict[str, Any]:
        results = compiled.create_infer_request().infer([images])  # one request per call: threads may share the model
        return {name: results[name] for name in names}

    metadata = {GUIDE: model.get_rt_info(GUIDE).astype(str)} if model.has_rt_info(GUIDE) else {}
    return metadata, shape, run


OPENERS: dict[str, Callable[[Path, int], Opened]] = {'.onnx': open_with_onnxruntime, '.xml': open_with_openvino}


def parse_guide(guide: str | None, file: Path) -> Mapping[str, Any]:
    """Parse the guide in the metadata of a file. Raises ArtifactError when it is absent, incomplete or of a later version."""
    if guide is None:
        raise ArtifactError(
            f'{file}: has no metadata about classes and images: it was not written by `phalanx export`, '
            'and its name is not that of a published PP-OCR file, such as PP-OCRv6_det_small.onnx'
        )
    try:
        content: dict[str, Any] = dict(json.loads(guide))
        if content['format'] != FORMAT:
            raise ArtifactError(
                f'{file}: was written by phalanx {content["phalanx"]}, which is newer than this; update, or export again'
            )
        if absent := [part for part in PARTS if part not in content]:
            raise KeyError(', '.join(absent))
    except (ValueError, TypeError) as error:
        raise ArtifactError(f'{file}: its metadata about classes and images cannot be read ({error}); export again') from None
    except KeyError as error:
        raise ArtifactError(f'{file}: its metadata lacks {error.args[0]}; export again') from None
    return content


def check_shape(actual: tuple[int, ...], shape: list[int | str], file: Path) -> None:
    """Raise ArtifactError if `actual` [B, 3, H, W] differs from a fixed size in the input `shape`."""
    for side, fixed, what in zip(actual, shape, ('a batch', 'channels', 'height', 'width'), strict=True):
        if isinstance(fixed, int) and side != fixed:
            size = f'{actual[3]} x {actual[2]}' if what in ('height', 'width') else f'{what} of {side}'
            cure = f'export again with --dynamic batch,{what}' if what in ('height', 'width') else 'one image at a time'
            raise ArtifactError(f'{file}: takes {what} {fixed} only, not an input of {size}; {cure}')


def _first_line(error: Exception) -> str:
    return str(error).strip().partition('\n')[0]
