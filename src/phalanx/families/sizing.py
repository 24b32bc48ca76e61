"""What transforms make of the sizes of images: each says it of itself as `sizing`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

# kept: as they come; one: all images get one size; one a step: all of a training step do; any: they may differ.
Sizing = Literal['kept', 'one', 'one a step', 'any']


def sizing_of(transforms: Sequence[Any]) -> Sizing:
    """The sizes after these transforms, one after the other; of a foreign transform, which does not say, any."""
    said: list[Sizing] = [getattr(transform, 'sizing', 'any') for transform in transforms]
    return next((sizing for sizing in reversed(said) if sizing != 'kept'), 'kept')
