"""DEIMv2 on HGNetV2: D-FINE with lighter parts, for networks of 0.5 to 4 million parameters.

Huang et al., Real-Time Object Detection Meets DINOv3, https://arxiv.org/abs/2509.20787. Shapes as in `detr`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.detection.models.detr import DETR, build, build_layers
from phalanx.families.detection.models.dfine import SIZES as DFINE_SIZES
from phalanx.families.detection.models.dfine import DFINEDecoder
from phalanx.families.detection.models.hybrid_encoder import dfine_encoder, elan
from phalanx.families.detection.models.shape import QueryOptions, Shape, Style
from phalanx.nn.backbones import BACKBONES, Backbone
from phalanx.nn.backbones.hgnetv2 import hgnetv2
from phalanx.nn.layers import ConvBN, ConvBNSiLU, initialise_convs


class LiteEncoder(nn.Module):
    """Map of stride 16 [[B, in, h, w]] -> two maps [B, channels, ., .], of strides 16 and 32."""

    def __init__(self, in_channels: Sequence[int], shape: Shape) -> None:
        super().__init__()
        (count,), channels = in_channels, shape.channels
        self.input_proj = ConvBN(count, channels, 1)
        self.halve, self.halve_again = ConvBNSiLU(channels, channels, 1), ConvBNSiLU(channels, channels, 1)
        self.bi_fusion = ConvBNSiLU(channels, channels, 1)
        self.fpn_block, self.pan_block = elan(shape, adds=True), elan(shape, adds=True)
        initialise_convs(self)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        fine = self.input_proj(maps[0])
        coarse = self.halve(F.avg_pool2d(fine, 3, 2, 1))
        # Each position of the coarse map gets the average of all.
        coarse = self.bi_fusion(coarse + coarse.mean((2, 3), keepdim=True))
        fine = self.fpn_block(fine + F.interpolate(coarse, scale_factor=2.0))
        return [fine, self.pan_block(coarse + self.halve_again(F.avg_pool2d(fine, 3, 2, 1)))]


def _small(backbone: Literal['atto', 'femto', 'pico'], channels: int, hidden: int) -> Shape:
    return Shape(
        backbone=partial(hgnetv2, size=backbone),
        strides=(16,),
        channels=channels,
        encoder_expansion=0.34,
        encoder_depth=0.5,
        decoder_channels=channels,
        decoder_hidden=hidden,
        decoder_layers=3,
        points=(4, 2),
    )


SIZES = {
    'atto': _small('atto', 64, 160),
    'femto': _small('femto', 96, 256),
    'pico': _small('pico', 112, 320),
    'n': DFINE_SIZES['n'],
}
QUERIES = {'atto': 100, 'femto': 150, 'pico': 200, 'n': 300}


def deimv2(
    num_classes: int,
    *,
    size: Literal['atto', 'femto', 'pico', 'n'] = 'n',
    backbone: Annotated[partial[Backbone] | None, BACKBONES] = None,
    channels: int | None = None,
    decoder_layers: int | None = None,
    decoder_hidden: int | None = None,
    queries: int | None = None,
    denoising: int = 100,
    label_noise: float = 0.5,
    box_noise: float = 1.0,
) -> DETR:
    """DEIMv2 of one size as published; the options from `backbone` to `queries` replace those of the size.

    `decoder_hidden` counts both halves of SwiGLU. `denoising`: queries from noisy true boxes in training, 0 for none. Raises
    ValueError for sizes that do not fit.
    """
    shape = SIZES[size].changed(
        {'backbone': backbone, 'channels': channels, 'decoder_layers': decoder_layers, 'decoder_hidden': decoder_hidden}
    )
    width, is_small = shape.decoder_channels, len(shape.strides) == 1
    style = Style(is_gated=not is_small, is_light=True)
    return build(
        'deimv2',
        num_classes,
        shape,
        QueryOptions(QUERIES[size] if queries is None else queries, denoising, label_noise, box_noise, swaps=True),
        partial(LiteEncoder, shape=shape) if is_small else partial(dfine_encoder, shape=shape, adds=True),
        DFINEDecoder(build_layers(shape, 'bilinear', style=style), width, num_classes, 4.0, style=style, shares_head=is_small),
        style=style,
    )
