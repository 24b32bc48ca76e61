"""Base classes of the batches of all families, and the conversion of images to tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from phalanx.data.samples import Image
from phalanx.runtime.prepare import check_input_size
from phalanx.system.memory import constant

ALIGNMENT = 64  # bytes between tensors in a common buffer, a multiple of what vectorised kernels load at once


@dataclass(frozen=True)
class Tensors:
    """Base of a dataclass whose tensors move to a device together; other fields stay unchanged."""

    on_host: ClassVar[frozenset[str]] = frozenset()  # names of tensors that stay on the host

    def tensors(self) -> list[Tensor]:
        """Return the tensors that move, also those of nested fields."""
        own = [(name, part) for name, part in vars(self).items() if name not in self.on_host]
        nested = [each for _, part in own if isinstance(part, Tensors) for each in part.tensors()]
        return [part for _, part in own if isinstance(part, Tensor)] + nested

    def to(self, device: torch.device) -> Self:
        """Return the same on `device`, in one transfer from the host, since each has a fixed cost."""
        parts = self.tensors()
        if device.type == 'cpu' or parts[0].device.type != 'cpu':
            return self._each(lambda part: part.to(device))
        has_buffer = len({part.untyped_storage().data_ptr() for part in parts}) == 1
        packed = self if has_buffer else self._in_one_buffer(pinned=device.type == 'cuda')
        buffer = torch.empty(0, dtype=torch.uint8).set_(packed.tensors()[0].untyped_storage())
        buffer = buffer.to(device, non_blocking=True)
        return packed._each(lambda part: _place(buffer, int(part.storage_offset()) * part.itemsize, part, part.stride()))

    def pin_memory(self) -> Self:
        """Return the same in pinned memory, as `to` needs it to copy without a wait. Torch's loader calls it in a thread."""
        return self._in_one_buffer(pinned=True)

    def _in_one_buffer(self, *, pinned: bool) -> Self:
        sizes = [-(-part.nbytes // ALIGNMENT) * ALIGNMENT for part in self.tensors()]
        buffer, starts = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pinned), accumulate(sizes, initial=0)
        return self._each(
            lambda part: _place(buffer, next(starts), part, torch.empty_like(part, device='meta').stride()).copy_(part)
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {}
        for name, part in vars(self).items():
            if isinstance(part, Tensor) and name not in self.on_host:
                changed[name] = change(part)
            elif isinstance(part, Tensors):
                changed[name] = part._each(change)
        return replace(self, **changed)


def _place(buffer: Tensor, start: int, like: Tensor, strides: Sequence[int]) -> Tensor:
    """View of the bytes of `buffer` from `start` on as a tensor of the type and shape of `like`."""
    return buffer[start : start + like.nbytes].view(like.dtype).as_strided(like.shape, strides)


@dataclass(frozen=True)
class ImageBatch(Tensors):
    """Base of a batch; each field has one entry per sample."""

    images: Tensor  # uint8 [B, 3, H, W]; with `data.bands` [B, C, H, W], uint8 or uint16

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


def channels_first(image: Image) -> Tensor:  # [H, W, C] -> [C, H, W]
    """View of an image [H, W, C] as a tensor [C, H, W].

    No bytes are copied: `normalise_images` changes the memory layout on the device. Raises TooLargeError for an image that is
    too large for a network.
    """
    check_input_size(*image.shape[:2])
    return torch.from_numpy(np.ascontiguousarray(image).transpose(2, 0, 1))


def stack_images(images: Sequence[Tensor]) -> Tensor:
    """Stack images [C, H, W] from `channels_first` to [B, C, H, W], in channels-last memory order."""
    # The inverse of `channels_first`: rows of pixels are joined as they are, in one copy per image.
    return torch.stack([image.permute(1, 2, 0) for image in images]).permute(0, 3, 1, 2)


def normalise_images(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Input of a network: `images` [B, C, H, W] uint8 as float32, per channel `(value / 255 - mean) / std`.

    Values of uint16 are divided by 65535. Runs on the device of the network: uint8 is a quarter of the data to move, and loader
    workers do no float work.
    """
    # Contiguous, as the first convolution expects, whatever layout the images arrived in.
    most = torch.iinfo(images.dtype).max
    floats = images.to(torch.float32, memory_format=torch.contiguous_format)
    means, stds = (constant(values, floats.dtype, floats.device).view(-1, 1, 1) for values in (mean, std))
    return floats.div_(most).sub_(means).div_(stds)
