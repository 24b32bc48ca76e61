"""The README beside an exported file, for whoever gets the file without Phalanx."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from phalanx.deploy.writing import LEAST

LARGEST_BATCH = 8  # in TensorRT's ranges


def readme_of(said: Mapping[str, Any], varying: Mapping[int, int], shape: Sequence[int]) -> str:
    """Markdown. `said`: what the file says about itself; `varying`: see `Export.dynamic`; `shape` [4] of a usual input."""
    template = files('phalanx.deploy').joinpath('readme.md').read_text(encoding='utf-8')
    file = Path(said['file'])
    page = Environment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(template)
    return page.render(
        said=said, stem=file.stem, suffix=file.suffix, least=LEAST, trtexec_shapes=trtexec_shapes(varying, shape)
    )


def trtexec_shapes(varying: Mapping[int, int], shape: Sequence[int]) -> str:
    """The options of trtexec that say how sizes vary: half to twice the sides of `shape`, batches of 1 to LARGEST_BATCH."""
    if not varying:
        return ''
    ranges = {'min': list(shape), 'opt': list(shape), 'max': list(shape)}
    for axis, step in varying.items():
        least, most = (1, LARGEST_BATCH) if axis == 0 else (-(-shape[axis] // (2 * step)) * step, 2 * shape[axis])
        ranges['min'][axis], ranges['max'][axis] = least, most
        ranges['opt'][axis] = 1 if axis == 0 else shape[axis]
    return ''.join(f' --{which}Shapes=images:{"x".join(map(str, sides))}' for which, sides in ranges.items())
