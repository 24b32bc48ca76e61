"""The losses of a recipe: a list, each with its coefficient."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from torch import Tensor

from phalanx.families.task import Loss, Term

L = TypeVar('L')
T = TypeVar('T')


def weighted(losses: Sequence[partial[L]], coefficients: Sequence[float]) -> list[tuple[L, float]]:
    """The losses, built, each with its coefficient, which is 1 where none are given.

    Raises ValueError when there is no loss, or not a coefficient for each.
    """
    if not losses:
        raise ValueError('loss: the list is empty, so there is nothing to learn from')
    if coefficients and len(coefficients) != len(losses):
        raise ValueError(f'loss has {len(losses)} entries, but loss_coefficients has {len(coefficients)}')
    return [(loss(), coefficient) for loss, coefficient in zip(losses, coefficients or (1.0,) * len(losses), strict=True)]


def summed(losses: Iterable[tuple[Loss, float]]) -> Loss:
    """The terms of all losses, each times the coefficient of its loss."""
    return _joined(
        {name: Term(term.total * coefficient, term.weight, term.least) for name, term in loss.items()}
        for loss, coefficient in losses
    )


def weights_of(losses: Iterable[Mapping[str, Tensor] | None]) -> dict[str, Tensor] | None:
    """The weights of all terms, by their names in `summed`; None where those of one of the losses depend on the outputs."""
    found = list(losses)
    known = [each for each in found if each is not None]
    return _joined(known) if len(known) == len(found) else None


def _joined(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """What the losses name, in one mapping; a name that an earlier loss has is followed by the place of its loss, from 0."""
    named: dict[str, T] = {}
    for place, part in enumerate(parts):
        for name, thing in part.items():
            named[f'{name}_{place}' if name in named else name] = thing
    return named
