"""Sizes of detectors with queries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

from torch import nn

from phalanx.nn.backbones import Backbone


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the parts; `strides` of the maps that the encoder takes, `points` per map and head in the decoder."""

    backbone: partial[Backbone]
    strides: tuple[int, ...] = (8, 16, 32)
    channels: int = 256
    encoder_hidden: int = 1024
    encoder_expansion: float = 1.0
    encoder_depth: float = 1.0
    decoder_channels: int = 256
    decoder_hidden: int = 1024
    decoder_layers: int = 6
    points: tuple[int, ...] = (4, 4, 4)

    def changed(self, options: Mapping[str, Any]) -> Self:
        """Replace what is not None in `options`; the decoder has the channels of the encoder, unless it is given its own."""
        given = {name: value for name, value in options.items() if value is not None}
        if 'channels' in given:
            given = {'decoder_channels': given['channels'], **given}
        shape = replace(self, **given)
        shape.check()
        return shape

    def check(self) -> None:
        """Raise ValueError for sizes that do not fit."""
        for name in ('channels', 'decoder_channels'):
            channels = getattr(self, name)
            if channels < 8 or channels % 8:
                raise ValueError(f'{name} must be a multiple of 8 (the heads of the attention), got {channels}')
        if self.decoder_layers < 1:
            raise ValueError(f'decoder_layers must be at least 1, got {self.decoder_layers}')
        maps = max(len(self.strides), 2)  # of one map, the encoder of DEIMv2 makes two
        if len(self.points) != maps or min(self.points) < 1:
            raise ValueError(f'points must be {maps} numbers of at least 1, one for each map; got {list(self.points)}')


class Style(NamedTuple):
    """Kinds of parts: `is_gated` joins attentions with a gate, `projects` has linear layers around attentions to the maps and
    projections of all maps, `is_light` the parts of DEIMv2.
    """

    is_gated: bool = False
    projects: bool = False
    is_light: bool = False

    @property
    def activation(self) -> type[nn.Module]:
        return nn.SiLU if self.is_light else nn.ReLU

    @property
    def norm(self) -> Callable[[int], nn.Module]:
        return partial(nn.RMSNorm, eps=1e-6) if self.is_light else nn.LayerNorm


class QueryOptions(NamedTuple):
    """Number of queries, and those from noisy true boxes in training; see `denoising`."""

    queries: int
    denoising: int
    label_noise: float
    box_noise: float
    swaps: bool

    def check(self) -> None:
        """Raise ValueError for numbers below 1 query, or below 0 for denoising."""
        if self.queries < 1 or self.denoising < 0:
            raise ValueError(f'queries must be at least 1, denoising at least 0; got {self.queries}, {self.denoising}')
