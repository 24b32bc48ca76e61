"""Exported files that a command names: by path, or by the run folder that contains them."""

import json
from pathlib import Path

from phalanx.config.read import did_you_mean
from phalanx.runtime import ArtifactError, Model, load
from phalanx.system.errors import RequestError

SUFFIXES = ('.onnx', '.xml')


def open_exported(file: Path, threads: int = 0) -> Model:
    """Load a file that a command names. Raises RequestError if it is not an exported model."""
    try:
        return load(file, threads=threads)
    except ArtifactError as error:
        raise RequestError(str(error)) from None


def parts_of(file: Path) -> list[Path]:
    """Files of an exported network: with OpenVINO, the weights are in a second one."""
    return [file, file.with_suffix('.bin')] if file.suffix == '.xml' else [file]


def find_exported(path: Path) -> Path:
    """Exported file at `path`, or in the run folder `path`. Raises RequestError, listing the files there."""
    if path.is_file():
        return path
    if path.is_dir():
        # model.onnx is the default name of an export; any single file is as clear.
        inside = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        default = next((file for file in inside if file.stem == 'model'), None)
        if default or len(inside) == 1:
            return default or inside[0]
        fault = f'holds {", ".join(file.name for file in inside)}: name one' if inside else 'holds no exported file'
        raise RequestError(f'{path}: {fault}' + ('' if inside else f'; `phalanx export {path}` writes one'))
    nearby = [file for suffix in SUFFIXES for pattern in (f'*{suffix}', f'runs/*/*{suffix}') for file in Path().glob(pattern)]
    known = sorted({str(file) for file in [*nearby, *path.parent.glob(f'*{path.suffix or ".onnx"}')]})
    listed = (
        f' (there are {", ".join(known[:5])}{" ..." if len(known) > 5 else ""})'
        if known
        else ' (nor another one; `phalanx export RUN` writes one)'
    )
    raise RequestError(f'{path}: there is no such file{did_you_mean(path, known)}{listed}')


def check_guide_place(file: Path) -> None:
    """Raise RequestError if the guide beside the new file `file` would replace a .json file that is none."""
    guide = file.with_suffix('.json')
    try:
        replaced = json.loads(guide.read_bytes())
    except FileNotFoundError:
        return
    except ValueError:
        replaced = None
    if not (isinstance(replaced, dict) and 'preparation' in replaced):
        raise RequestError(f'--out {file}: {guide}, which no export wrote, would be replaced; choose another name')
