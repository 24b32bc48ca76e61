"""The losses of a recipe: a list, each with its coefficient."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, count
from typing import TypeVar

from torch import Tensor

from phalanx.families.task import Loss, Term

L = TypeVar('L')
T = TypeVar('T')


def weight_losses(losses: Sequence[partial[L]], coefficients: Sequence[float]) -> list[tuple[L, float]]:
    """The losses, built, each with its coefficient, which is 1 where none are given.

    Raises ValueError when there is no loss, not a coefficient for each, or a loss without the method `weights`.
    """
    if not losses:
        raise ValueError('loss: the list is empty, so there is nothing to learn from')
    if coefficients and len(coefficients) != len(losses):
        raise ValueError(f'loss has {len(losses)} entries, but loss_coefficients has {len(coefficients)}')
    built = [check_loss(loss()) for loss in losses]
    return list(zip(built, coefficients or (1.0,) * len(losses), strict=True))


def check_loss(loss: L) -> L:
    """`loss`, which may come from a plugin, checked before anything starts. Raises ValueError when it has no method `weights`.

    Only micro-batches call that, so its absence would show in the run of another user. A mixture is no loss by itself.
    """
    if callable(loss) and not hasattr(loss, 'weights'):
        raise ValueError(f'loss: {type(loss).__name__} has no method `weights`; docs/extending.md lists what a loss has')
    return loss


def sum_losses(losses: Iterable[tuple[Loss, float]]) -> Loss:
    """The terms of all losses, each times the coefficient of its loss."""
    return merge_terms(
        {name: Term(term.total * coefficient, term.weight, term.least) for name, term in loss.items()}
        for loss, coefficient in losses
    )


def collect_weights(losses: Iterable[Mapping[str, Tensor] | None]) -> dict[str, Tensor] | None:
    """The weights of all terms, by their names in `sum_losses`; None where those of one of the losses depend on the outputs."""
    found = list(losses)
    known = [each for each in found if each is not None]
    return merge_terms(known) if len(known) == len(found) else None


def merge_terms(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """The entries of all parts, none lost: a name that is taken is followed by the place of its part, from 0."""
    named: dict[str, T] = {}
    for place, part in enumerate(parts):
        for name, thing in part.items():
            names = chain([name, f'{name}_{place}'], (f'{name}_{place}.{n}' for n in count(2)))
            named[next(free for free in names if free not in named)] = thing
    return named
