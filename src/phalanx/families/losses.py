"""Weighted sum of the losses of a recipe."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, count
from typing import TypeVar

from torch import Tensor

from phalanx.families.contracts import check_terms, require
from phalanx.families.task import Loss, Term

L = TypeVar('L')
T = TypeVar('T')


def weight_losses(losses: Sequence[partial[L]], coefficients: Sequence[float], needs: Sequence[str]) -> list[tuple[L, float]]:
    """Build the losses; return each with its coefficient (default 1).

    Raises ValueError for an empty list, another number of coefficients, and a loss that lacks one of `needs`.
    """
    if not losses:
        raise ValueError('loss: the list is empty; list at least one')
    if coefficients and len(coefficients) != len(losses):
        raise ValueError(f'loss has {len(losses)} entries, but loss_coefficients has {len(coefficients)}')
    built = [check_loss(loss(), needs) for loss in losses]
    return list(zip(built, coefficients or (1.0,) * len(losses), strict=True))


def check_loss(loss: L, needs: Sequence[str]) -> L:
    """Return `loss`. Raises ValueError if it lacks one of `needs`; a mixture, which is not called itself, needs none."""
    if callable(loss):
        require(loss, 'loss', needs)
    return loss


def sum_losses(losses: Iterable[tuple[Loss, float]]) -> Loss:
    """Terms of all losses, each multiplied by the coefficient of its loss. Raises RunError for what is not a term."""
    return merge_terms(
        {name: Term(term.total * coefficient, term.weight, term.least) for name, term in check_terms(loss).items()}
        for loss, coefficient in losses
    )


def collect_weights(losses: Iterable[Mapping[str, Tensor] | None]) -> dict[str, Tensor] | None:
    """Weights of all terms, by their names in `sum_losses`; None if those of any loss depend on the outputs."""
    weights = list(losses)
    known = [each for each in weights if each is not None]
    return merge_terms(known) if len(known) == len(weights) else None


def merge_terms(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Entries of all parts. The index of the part is appended to a name that is already used (`ce_1`), so that none is lost."""
    merged: dict[str, T] = {}
    for place, part in enumerate(parts):
        for name, entry in part.items():
            names = chain([name, f'{name}_{place}'], (f'{name}_{place}.{n}' for n in count(2)))
            merged[next(name for name in names if name not in merged)] = entry
    return merged
