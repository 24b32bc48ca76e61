"""Check of what a network, which may be a plug-in's, returned: otherwise losses fail with errors of torch or learn nonsense."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from phalanx.system.errors import RunError

Shape = Sequence[int | str]


def check_fields(mode: str, outputs: Any, expected: Mapping[str, Shape]) -> None:
    """Raise RunError unless `outputs` have tensors of these names and shapes; a letter is any size, but always the same.

    `mode` is for the message, `training` or `evaluation`.
    """
    fields = {name: getattr(outputs, name) for name in expected if hasattr(outputs, name)}
    found = {name: list(each.shape) if isinstance(each, Tensor) else type(each).__name__ for name, each in fields.items()}
    sizes = dict[str, int]()
    if not all(_fits(found.get(name, ''), shape, sizes) for name, shape in expected.items()):
        wanted = ', '.join(f'`{name}` [{", ".join(map(str, shape))}]' for name, shape in expected.items())
        having = f' with {", ".join(f"`{name}` {shape}" for name, shape in found.items())}' if found else ''
        raise RunError(f'model: in {mode} it must return {wanted}; it returned {type(outputs).__name__}{having}')


def _fits(found: list[int] | str, shape: Shape, sizes: dict[str, int]) -> bool:
    """True if `found` is of `shape`, with the `sizes` of letters known so far, to which it adds."""
    if isinstance(found, str) or len(found) != len(shape):
        return False
    pairs = zip(shape, found, strict=True)
    return all((sizes.setdefault(size, own) if isinstance(size, str) else size) == own for size, own in pairs)
