"""Requirements of the parts of a recipe, whoever wrote them."""

from collections.abc import Iterable, Mapping
from inspect import isclass
from typing import Any

from torch import Tensor

from phalanx.families.task import Loss, Term
from phalanx.system.errors import RunError

METRIC = ('names', 'tie_breakers', 'update', 'gather', 'compute', 'table', 'figures')


def require(part: Any, kind: str, names: Iterable[str]) -> None:
    """Raise ValueError for a `part` that lacks one of `names`, at the start rather than at its first use.

    `part`: an object or a class. `kind`: key of the recipe that names it.
    """
    title = part.__name__ if isclass(part) else type(part).__name__
    if missing := [f'`{name}`' for name in names if not hasattr(part, name)]:
        raise ValueError(f'{kind}: {title} has no {" and no ".join(missing)}; docs/extending.md lists what it needs')


def check_terms(loss: Any) -> Loss:
    """Return the terms that a loss has returned. Raises RunError for anything else."""
    terms: Loss = loss if isinstance(loss, Mapping) else {'it': loss}
    for name, term in terms.items():
        if not isinstance(term, Term):
            raise RunError(
                f'loss: {name} must be a Term(total, weight), a sum over the batch and its weight, such as the number of '
                f'pixels; it is {_describe(term)} (docs/extending.md, Losses)'
            )
        for field in ('total', 'weight'):
            value = getattr(term, field)
            if not isinstance(value, Tensor) or value.dim():
                raise RunError(f'loss: the {field} of {name} must be a tensor without dimensions; it is {_describe(value)}')
    return terms


def _describe(value: Any) -> str:
    return f'a tensor {list(value.shape)}' if isinstance(value, Tensor) else f'of type {type(value).__name__}'
