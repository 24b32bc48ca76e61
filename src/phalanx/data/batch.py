"""Base classes of the batches of all families, and the conversion of images to tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from phalanx.data.samples import Image
from phalanx.runtime.prepare import check_input_size


@dataclass(frozen=True)
class Tensors:
    """Base of a dataclass whose tensors move to a device together; other fields stay unchanged."""

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
    """Base of a batch; each field has one entry per sample."""

    images: Tensor  # uint8 [B, 3, H, W]

    def __len__(self) -> int:
        return len(self.images)

    def split(self, parts: int) -> list[Self]:
        """Split into `parts` consecutive micro-batches whose sizes differ by at most one sample."""
        return [type(self)(*each) for each in zip(*(split_evenly(field, parts) for field in vars(self).values()), strict=True)]


T = TypeVar('T', bound=Sequence[Any] | Tensor)


def split_evenly(values: T, parts: int) -> list[T]:
    """Split `values` [B] into consecutive parts whose lengths differ by at most one, longer ones first."""
    least, longer = divmod(len(values), parts)
    ends = [part * least + min(part, longer) for part in range(parts + 1)]
    return [values[start:end] for start, end in pairwise(ends)]  # type: ignore[misc]


def channels_first(image: Image) -> Tensor:  # [H, W, 3] -> [3, H, W]
    """View of an image [H, W, 3] as a tensor [3, H, W].

    No bytes are copied: `normalise_images` changes the memory layout on the device. Raises TooLargeError for an image that is
    too large for a network.
    """
    check_input_size(*image.shape[:2])
    return torch.from_numpy(np.ascontiguousarray(image).transpose(2, 0, 1))


def stack_images(images: Sequence[Tensor]) -> Tensor:
    """Stack images [3, H, W] from `channels_first` to [B, 3, H, W], in channels-last memory order."""
    # The inverse of `channels_first`: rows of RGB pixels are joined as they are, in one copy per image.
    return torch.stack([image.permute(1, 2, 0) for image in images]).permute(0, 3, 1, 2)


def normalise_images(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Input of a network: `images` [B, 3, H, W] uint8 as float32, per channel `(value / 255 - mean) / std`.

    Runs on the device of the network: uint8 is a quarter of the data to move, and loader workers do no float work.
    """
    # Contiguous, as the first convolution expects, whatever layout the images arrived in.
    floats = images.to(torch.float32, memory_format=torch.contiguous_format)
    return floats.div_(255).sub_(_per_channel(mean, images.device)).div_(_per_channel(std, images.device))


@cache
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """`values` as [3, 1, 1] on `device`; cached, because each copy to a device synchronises with it."""
    return torch.tensor(values, device=device).view(-1, 1, 1)
