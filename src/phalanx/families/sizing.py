"""Sizes of images after transforms: each transform has an attribute `sizing`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from phalanx.config.options import check_probability
from phalanx.data.samples import Rng

# kept: unchanged; one: one size for all images; one a step: one size per training step; any: sizes may differ.
Sizing = Literal['kept', 'one', 'one a step', 'any']
FREEDOM: tuple[Sizing, ...] = ('one', 'one a step', 'kept', 'any')  # from the strictest on
MAX_WARP_SIDE = 2**15 - 2  # pixels per side, the limit of OpenCV warps


def sizing_of(transforms: Sequence[Any]) -> Sizing:
    """Sizing after a sequence of transforms; `any` after a foreign transform without the attribute."""
    # The last transform that changes sizes decides; those limited to some epochs leave it to the earlier ones in the others.
    found: list[Sizing] = ['one']
    for transform in reversed(transforms):
        sizing: Sizing = getattr(transform, 'sizing', 'any')
        if sizing != 'kept':
            found.append(sizing)
            if getattr(transform, 'start_epoch', 0) == 0 and getattr(transform, 'stop_epoch', None) is None:
                break
    else:
        found.append('kept')
    return max(found, key=FREEDOM.index)


@dataclass(frozen=True, kw_only=True)
class RandomTransform:
    """Base class of transforms that happen with a probability and keep the size of the image."""

    sizing: ClassVar[Sizing] = 'kept'

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_probability('probability', self.probability)

    def happens(self, rng: Rng) -> bool:
        return rng.random() < self.probability
