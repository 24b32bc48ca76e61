"""RT-DETR and RT-DETRv2. Shapes as in `detr`.

Zhao et al., DETRs Beat YOLOs on Real-time Object Detection, https://arxiv.org/abs/2304.08069; Lv et al., RT-DETRv2,
https://arxiv.org/abs/2407.17140.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal, cast

from torch import Tensor, nn

from phalanx.families.detection.models.detr import (
    DETR,
    MLP,
    DecoderLayer,
    Sizes,
    build,
    build_layers,
    initialise_heads,
    query_pos_head,
)
from phalanx.families.detection.models.hybrid_encoder import rtdetr_encoder
from phalanx.families.detection.models.shape import QueryOptions, Shape, Style
from phalanx.families.detection.queries import Decoded, Queries, inverse_sigmoid
from phalanx.nn.backbones import BACKBONES, Backbone
from phalanx.nn.backbones.hgnetv2 import hgnetv2
from phalanx.nn.backbones.resnet34_vd import resnet34_vd
from phalanx.nn.backbones.resnet_vd import resnet18_vd, resnet50_vd, resnet101_vd


class RTDETRDecoder(nn.Module):
    """Decoder whose layers refine the boxes one after the other; see `detr.Decoder`."""

    def __init__(self, layers: Sequence[DecoderLayer], channels: int, num_classes: int, eval_layers: int) -> None:
        """`eval_layers`: layers that are used in evaluation."""
        super().__init__()
        self.layers, self.eval_layers = nn.ModuleList(layers), eval_layers
        self.query_pos_head = query_pos_head(channels, STYLE)
        scores = [nn.Linear(channels, num_classes) for _ in layers]
        boxes = [MLP(channels, channels, 4, 3) for _ in layers]
        initialise_heads(scores, boxes)
        self.score_head, self.bbox_head = nn.ModuleList(scores), nn.ModuleList(boxes)

    def forward(self, x: Tensor, unactivated: Tensor, memory: Tensor, sizes: Sizes, mask: Tensor | None) -> Decoded:
        boxes = previous = unactivated.sigmoid()
        layers, blocks = [], cast(Sequence[DecoderLayer], self.layers)
        for number, (layer, score, refine) in enumerate(zip(blocks, self.score_head, self.bbox_head, strict=True)):
            x = layer(x, self.query_pos_head(boxes), boxes, layer.values(memory, sizes), mask)
            change = refine(x).to(boxes.dtype)
            if self.training:
                # The gradient of a layer's boxes reaches the layer before, but no further (look forward twice, DINO).
                layers.append(Queries(score(x), (change + inverse_sigmoid(previous)).sigmoid()))
            previous = (change + inverse_sigmoid(boxes)).sigmoid()
            boxes = previous.detach()
            if not self.training and number == self.eval_layers - 1:
                return Decoded((Queries(score(x), previous),))
        return Decoded(tuple(layers))


STYLE = Style(projects=True)
SMALL = Shape(backbone=partial(resnet18_vd), encoder_expansion=0.5, decoder_layers=3)
LARGE = Shape(backbone=partial(resnet50_vd))
WIDE = replace(LARGE, channels=384, encoder_hidden=2048)
SIZES = {
    'r18vd': SMALL,
    'r34vd': replace(SMALL, backbone=partial(resnet34_vd), decoder_layers=4),
    'r50vd_m': replace(LARGE, encoder_expansion=0.5),
    'r50vd': LARGE,
    'r101vd': replace(WIDE, backbone=partial(resnet101_vd)),
    'hgnetv2_l': replace(LARGE, backbone=partial(hgnetv2, size='b4', affine=False)),
    'hgnetv2_x': replace(WIDE, backbone=partial(hgnetv2, size='b5', affine=False)),
}


def rtdetrv2(
    num_classes: int,
    *,
    size: Literal['r18vd', 'r34vd', 'r50vd_m', 'r50vd', 'r101vd', 'hgnetv2_l', 'hgnetv2_x'] = 'r18vd',
    backbone: Annotated[partial[Backbone] | None, BACKBONES] = None,
    channels: int | None = None,
    encoder_hidden: int | None = None,
    decoder_channels: int | None = None,
    decoder_layers: int | None = None,
    eval_layers: int | None = None,
    decoder_hidden: int | None = None,
    points: tuple[int, ...] | None = None,
    sampling: Literal['bilinear', 'discrete'] = 'bilinear',
    queries: int = 300,
    denoising: int = 100,
    label_noise: float = 0.5,
    box_noise: float = 1.0,
) -> DETR:
    """RT-DETR or RT-DETRv2 of one size as published; the options from `backbone` to `points` replace those of the size.

    With bilinear sampling of four `points` from each map per head, the two networks are the same. `discrete` sampling reads the
    nearest position, for runtimes without it. `denoising`: queries from noisy true boxes in training, 0 for none.
    `eval_layers`: decoder layers used in evaluation (default: 3 for r50vd_m, else all). Raises ValueError for another number of
    `points` than maps, and numbers that do not fit.
    """
    shape = SIZES[size].changed(
        {
            'backbone': backbone,
            'channels': channels,
            'encoder_hidden': encoder_hidden,
            'decoder_channels': decoder_channels,
            'decoder_layers': decoder_layers,
            'decoder_hidden': decoder_hidden,
            'points': points,
        }
    )
    count, width = shape.decoder_layers, shape.decoder_channels
    used = eval_layers or (min(3, count) if size == 'r50vd_m' else count)
    if not 1 <= used <= count or eval_layers == 0:
        raise ValueError(f'eval_layers must be from 1 to the {count} layers of the decoder, got {eval_layers}')
    layers = build_layers(shape, sampling, style=STYLE)
    return build(
        'rtdetrv2',
        num_classes,
        shape,
        QueryOptions(queries, denoising, label_noise, box_noise, swaps=False),
        partial(rtdetr_encoder, shape=shape),
        RTDETRDecoder(layers, width, num_classes, used),
        style=STYLE,
    )
