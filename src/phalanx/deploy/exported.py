"""Exported files as people name them: by path, or by the folder of the run that they lie in."""

from pathlib import Path

from phalanx.config.read import did_you_mean
from phalanx.system.errors import RequestError

SUFFIXES = ('.onnx', '.xml')


def find_exported(path: Path) -> Path:
    """The exported file at `path`, or in the run folder `path`. Raises RequestError, which names what there is."""
    if path.is_file():
        return path
    if path.is_dir():
        inside = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        usual = next((file for file in inside if file.stem == 'model'), None)
        if usual or len(inside) == 1:
            return usual or inside[0]
        what = f'holds {", ".join(file.name for file in inside)}: name one' if inside else 'holds no exported file'
        raise RequestError(f'{path}: {what}' + ('' if inside else f'; `phalanx export {path}` writes one'))
    there = [file for suffix in SUFFIXES for pattern in (f'*{suffix}', f'runs/*/*{suffix}') for file in Path().glob(pattern)]
    known = sorted({str(file) for file in [*there, *path.parent.glob(f'*{path.suffix or ".onnx"}')]})
    listed = f' (there are {", ".join(known[:5])}{" ..." if len(known) > 5 else ""})' if known else ''
    raise RequestError(f'{path}: there is no such file{did_you_mean(path, known)}{listed}')
