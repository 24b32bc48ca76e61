"""What the batches of all families have in common: how images become tensors, and that these travel together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from phalanx.data.samples import Image
from phalanx.runtime.prepare import check_seen


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


def channels_first(image: Image) -> Tensor:  # [H, W, 3] -> [3, H, W]
    """A view: loading has no time to spare, so `normalised` lays the bytes out in this order, where the network runs.

    Raises TooLargeError for an image that is too large for a network.
    """
    check_seen(*image.shape[:2])
    return torch.from_numpy(np.ascontiguousarray(image).transpose(2, 0, 1))


def stacked(images: Sequence[Tensor]) -> Tensor:
    """[B, 3, H, W] of images [3, H, W] as `channels_first` makes them; in memory it stays pixel by pixel."""
    return torch.stack([image.permute(1, 2, 0) for image in images]).permute(0, 3, 1, 2)


def normalised(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """What a network takes: `images` [B, 3, H, W] uint8 as float32, per channel `(value / 255 - mean) / std`.

    Called where the network runs: bytes are a quarter of the data to move, and workers have no float work.
    """
    floats = images.to(torch.float32, memory_format=torch.contiguous_format)
    return floats.div_(255).sub_(_per_channel(mean, images.device)).div_(_per_channel(std, images.device))


@cache
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """`values` as [3, 1, 1] on `device`; kept, because every copy to a device makes it wait."""
    return torch.tensor(values, device=device).view(-1, 1, 1)
