"""RT-DETRv2. Lv et al., https://arxiv.org/abs/2407.17140. Shapes as in `detr`."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, cast

from torch import Tensor, nn

from phalanx.families.detection.models.deformable import Sampling
from phalanx.families.detection.models.denoising import Denoising
from phalanx.families.detection.models.detr import (
    DETR,
    MLP,
    DecoderLayer,
    QuerySelection,
    Sizes,
    initialise_heads,
    project_maps,
    query_pos_head,
)
from phalanx.families.detection.models.hybrid_encoder import rtdetr_encoder
from phalanx.families.detection.queries import Decoded, Queries, inverse_sigmoid
from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.resnet_vd import resnet18_vd

STRIDES = (8, 16, 32)


class RTDETRDecoder(nn.Module):
    """Decoder whose layers refine the boxes one after the other; see `detr.Decoder`."""

    def __init__(self, layers: Sequence[DecoderLayer], channels: int, num_classes: int, eval_layers: int) -> None:
        """`eval_layers`: layers that are used in evaluation."""
        super().__init__()
        self.layers, self.eval_layers = nn.ModuleList(layers), eval_layers
        self.query_pos_head = query_pos_head(channels)
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


def rtdetrv2(
    num_classes: int,
    *,
    backbone: Annotated[partial[Backbone], BACKBONES] = partial(resnet18_vd),
    channels: int = 256,
    encoder_hidden: int = 1024,
    encoder_expansion: float = 0.5,
    encoder_depth: float = 1.0,
    decoder_layers: int = 3,
    eval_layers: int | None = None,
    decoder_hidden: int = 1024,
    queries: int = 300,
    points: tuple[int, ...] = (4, 4, 4),
    sampling: Literal['bilinear', 'discrete'] = 'bilinear',
    denoising: int = 100,
    label_noise: float = 0.5,
    box_noise: float = 1.0,
) -> DETR:
    """RT-DETRv2; the defaults are those of R18-vd.

    `points` are read from each map per head; `discrete` sampling reads the nearest position, for runtimes without bilinear
    sampling. `denoising`: queries from noisy true boxes in training, 0 for none. `eval_layers`: decoder layers used in
    evaluation (default: all). Raises ValueError for another number of `points` than maps, and numbers that do not fit.
    """
    check_sizes(channels, decoder_layers, queries, denoising, points, STRIDES)
    if eval_layers is not None and not 1 <= eval_layers <= decoder_layers:
        raise ValueError(f'eval_layers must be from 1 to the {decoder_layers} layers of the decoder, got {eval_layers}')
    maps = backbone(STRIDES)
    places = select_maps(maps, STRIDES, 'rtdetrv2')
    in_channels = [maps.channels[place] for place in places]
    method: Sampling = sampling
    layers = [DecoderLayer(channels, decoder_hidden, points, method, gated=False) for _ in range(decoder_layers)]
    encoder = rtdetr_encoder(in_channels, channels, hidden=encoder_hidden, expansion=encoder_expansion, depth=encoder_depth)
    return DETR(
        maps,
        places,
        encoder,
        project_maps(len(STRIDES), channels, channels, always=True),
        QuerySelection(channels, num_classes, queries),
        Denoising(num_classes, channels, count=denoising, label_noise=label_noise, box_noise=box_noise, swaps=False)
        if denoising
        else None,
        RTDETRDecoder(layers, channels, num_classes, eval_layers or decoder_layers),
    )


def check_sizes(
    channels: int, layers: int, queries: int, denoising: int, points: Sequence[int], strides: Sequence[int]
) -> None:
    """Raise ValueError for sizes of a detector with queries that do not fit."""
    if channels < 8 or channels % 8:
        raise ValueError(f'channels must be a multiple of 8 (the heads of the attention), got {channels}')
    if min(layers, queries) < 1 or denoising < 0:
        raise ValueError(
            f'decoder_layers and queries must be at least 1, denoising at least 0; got {layers}, {queries}, {denoising}'
        )
    if len(points) != len(strides) or min(points) < 1:
        raise ValueError(f'points must be {len(strides)} numbers of at least 1, one for each map; got {list(points)}')
