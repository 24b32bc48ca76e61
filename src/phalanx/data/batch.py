"""What the batches of all families have in common: their tensors travel together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tensors:
    """The base of a dataclass whose tensors move as one; what it holds besides stays where it is."""

    def to(self, device: torch.device) -> Self:
        return self._each(lambda part: part.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {}
        for name, part in vars(self).items():
            if isinstance(part, Tensor):
                changed[name] = change(part)
            elif isinstance(part, Tensors):
                changed[name] = part._each(change)
        return replace(self, **changed)


@dataclass(frozen=True)
class ImageBatch(Tensors):
    """The base of a batch whose every field has something for each sample."""

    images: Tensor  # uint8 [B, 3, H, W]

    def __len__(self) -> int:
        return len(self.images)

    def split(self, parts: int) -> list[Self]:
        """As consecutive micro-batches, whose sizes differ by at most one sample."""
        return [type(self)(*each) for each in zip(*(shares(field, parts) for field in vars(self).values()), strict=True)]


T = TypeVar('T', bound=Sequence[Any] | Tensor)


def shares(values: T, parts: int) -> list[T]:
    """`values` [B] as consecutive parts whose lengths differ by at most one, the longer ones first."""
    least, longer = divmod(len(values), parts)
    ends = [part * least + min(part, longer) for part in range(parts + 1)]
    return [values[start:end] for start, end in pairwise(ends)]  # type: ignore[misc]
