"""Files of distillations hold several networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt


def of_network(arrays: Mapping[str, npt.NDArray[Any]], name: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of the network `name` (`Student`, `Teacher` in PaddleOCR), by the names they have without the others.

    Raises ValueError, with the names there are, when none is of that network.
    """
    prefix = f'{name}.'
    found = {array.removeprefix(prefix): values for array, values in arrays.items() if array.startswith(prefix)}
    if not found:
        there = ', '.join(sorted({array.partition('.')[0] for array in arrays}))
        raise ValueError(f'the weights hold no network {name!r}; their names start with {there}')
    return found
