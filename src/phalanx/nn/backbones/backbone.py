"""Interface between backbones and the networks that use them."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from phalanx.nn.layers import Stride


class Backbone(Protocol):
    """An nn.Module: images [B, 3, H, W] -> list of feature maps, from fine to coarse.

    Map i is [B, channels[i], H / strides[i], W / strides[i]], rounded up.
    """

    @property
    def channels(self) -> tuple[int, ...]: ...

    @property
    def strides(self) -> tuple[Stride, ...]:
        """Stride of each map in pixels of the image; (down, right) where they differ."""

    def __call__(self, images: Tensor) -> list[Tensor]: ...


def output_stride(strides: Sequence[Stride]) -> int:
    """Return the stride of the coarsest map that a network needs, from 8 to 32; 32 where it differs by axis."""
    coarsest = strides[-1]
    return min(max(coarsest, 8), 32) if isinstance(coarsest, int) else 32


def select_maps(backbone: Backbone, strides: Sequence[Stride], network: str) -> tuple[int, ...]:
    """Return the indices of the maps of `strides` among those of `backbone`; of several with one stride, the last.

    `network` is the name for messages. Raises ValueError when a stride is missing, or when the coarsest map of the backbone is
    not selected: its last layers would have no gradient.
    """
    available = tuple(backbone.strides)
    # Layers after the coarsest selected map would have no gradients, which DDP refuses.
    if not set(strides) <= set(available) or available[-1] != strides[-1]:
        kind = type(backbone).__name__
        raise ValueError(
            f'{network} needs maps of stride {_format_strides(strides)}, and none coarser; '
            f'the backbone {kind} has {_format_strides(available)}; choose another backbone'
        )
    return tuple(len(available) - 1 - available[::-1].index(stride) for stride in strides)


def _format_strides(strides: Sequence[Stride]) -> str:
    """Return strides as text: `4, 8, 16`, and `32 x 4` for a stride of 32 down and 4 to the right."""
    return ', '.join(str(stride) if isinstance(stride, int) else f'{stride[0]} x {stride[1]}' for stride in strides)
