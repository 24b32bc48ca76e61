"""What transforms have in common: each says of itself, as `sizing`, what it makes of the sizes of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from phalanx.config.options import check_probability
from phalanx.data.samples import Rng

# kept: as they come; one: all images get one size; one a step: all of a training step do; any: they may differ.
Sizing = Literal['kept', 'one', 'one a step', 'any']
MAX_WARP_SIDE = 2**15 - 2  # pixels of a side: OpenCV warps no longer ones


def sizing_of(transforms: Sequence[Any]) -> Sizing:
    """The sizes after these transforms, one after the other; of a foreign transform, which does not say, any."""
    said: list[Sizing] = [getattr(transform, 'sizing', 'any') for transform in transforms]
    return next((sizing for sizing in reversed(said) if sizing != 'kept'), 'kept')


@dataclass(frozen=True, kw_only=True)
class RandomTransform:
    """The base of transforms that happen with a probability and keep the size of an image."""

    sizing: ClassVar[Sizing] = 'kept'

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_probability('probability', self.probability)

    def happens(self, rng: Rng) -> bool:
        return rng.random() < self.probability
