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
# Numbers in an input. onnxruntime retains the memory that it has taken; above MOST_RETAINED, 4 million pixels, it frees it
# after each input. Its arena needs more memory than separate allocations, but less time: PP-OCRv6's detector takes 1.6 instead
# of 1.3 GB for a page of 3520 x 2496, and 8.6 instead of 11.0 s. Above MOST_IN_ARENA, 9 million pixels, `phalanx read` would
# need more than 2 GB, so each layer allocates its own (2026-11-27).
MOST_RETAINED, MOST_IN_ARENA = 3 * 2**22, 3 * 9 * 2**20
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
        suitable, options = session if images.size <= MOST_IN_ARENA else frugal(), onnxruntime.RunOptions()
        if MOST_RETAINED < images.size <= MOST_IN_ARENA:
            options.add_run_config_entry('memory.enable_memory_arena_shrinkage', 'cpu:0')
        return dict(zip(names, suitable.run(names, {images_in.name: images}, options), strict=True))

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
    if arena:
        register_arena()
        options.add_session_config_entry('session.use_env_allocators', '1')
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_DISABLE_ALL if not fused else levels.ORT_ENABLE_ALL if arena else levels.ORT_ENABLE_EXTENDED
    )
    return onnxruntime.InferenceSession(model, options, providers=['CPUExecutionProvider'])


@cache
def register_arena() -> None:
    """Give onnxruntime an arena that grows by what is needed, for all sessions; by default it grows by powers of two."""
    import onnxruntime

    arena = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemoryInfo('Cpu', arena, 0, onnxruntime.OrtMemType.DEFAULT)
    as_requested = {'max_mem': 0, 'arena_extend_strategy': 1, 'initial_chunk_size_bytes': -1, 'max_dead_bytes_per_chunk': -1}
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(as_requested))


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
    """Raise ArtifactError if `actual` [B, C, H, W] differs from a fixed size in the input `shape`."""
    sides = list(zip(('batch', 'channels', 'height', 'width'), actual, shape, strict=True))
    wrong = [f'{name} {fixed}' for name, side, fixed in sides if isinstance(fixed, int) and side != fixed]
    if wrong:
        given = ', '.join(f'{name} {side}' for name, side, _ in sides)
        # What varies already, and what would have to.
        free = [name for name, side, fixed in sides if name != 'channels' and fixed != side]
        cure = f'export again with --dynamic {",".join(free)}'
        raise ArtifactError(f'{file}: takes {" and ".join(wrong)} only, not an input of {given}; {cure}')


def _first_line(error: Exception) -> str:
    return str(error).strip().partition('\n')[0]
