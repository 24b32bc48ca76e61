"""Files of distillations hold several networks, each under its name: `Student`, `Teacher` in PaddleOCR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
from torch import nn

from phalanx.families.distillation import Distilled

Arrays = Mapping[str, npt.NDArray[Any]]

STUDENT = 'Student'  # the network that PaddleOCR trains for later use


def networks_in(arrays: Arrays, model: nn.Module) -> list[tuple[nn.Module, Arrays]]:
    """The networks that the arrays of a file are for, each with its own: all of a distillation, or `model`.

    A model that is no distillation takes the student of one. Raises ValueError when a network is not there.
    """
    if isinstance(model, Distilled):
        return [(network, of_network(arrays, name.capitalize())) for name, network in model.networks.items()]
    if any(name.startswith(f'{STUDENT}.') for name in arrays):
        return [(model, of_network(arrays, STUDENT))]
    return [(model, arrays)]


def of_network(arrays: Arrays, name: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of the network `name`, by the names they have without the others.

    Raises ValueError, with the names there are, when none is of that network.
    """
    prefix = f'{name}.'
    found = {array.removeprefix(prefix): values for array, values in arrays.items() if array.startswith(prefix)}
    if not found:
        there = ', '.join(sorted({array.partition('.')[0] for array in arrays}))
        raise ValueError(f'the weights hold no network {name!r}; their names start with {there}')
    return found
