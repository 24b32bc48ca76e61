"""D-FINE: a detector with queries whose layers refine distributions of the distances of the sides.

Peng et al., D-FINE: Redefine Regression Task in DETRs as Fine-grained Distribution Refinement (FDR),
https://arxiv.org/abs/2410.13842. Shapes as in `detr`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, cast

import torch
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
from phalanx.families.detection.models.hybrid_encoder import dfine_encoder
from phalanx.families.detection.models.shape import QueryOptions, Shape, Style
from phalanx.families.detection.queries import Decoded, Queries, centres, inverse_sigmoid
from phalanx.nn.backbones import BACKBONES, Backbone
from phalanx.nn.backbones.hgnetv2 import hgnetv2
from phalanx.nn.precision import at_least_float32

BINS, REACH = 33, 0.5  # of the distribution of a distance; REACH: `up` of the original
TOP, QUALITY_HIDDEN = 4, 64  # of the estimator of the quality of a location (LQE)
POINTS = (3, 6, 3)
STYLE = Style(is_gated=True)


def bin_distances(scale: float) -> Tensor:
    """Distances [33] of the bins, W(n) of the paper (eq. 3): dense around 0, the outermost twice as far as the next.

    `scale` (`reg_scale`) is their unit: a box side moves by distance / scale of the side of the box.
    """
    reach, half = REACH * scale, BINS // 2
    steps = (reach + 1) ** (torch.arange(1, half, dtype=torch.float64) / (half - 1)) - 1
    right = torch.cat([steps, steps.new_tensor([2 * reach])])
    return torch.cat([-right.flip(0), right.new_zeros(1), right]).float()


class DFINEDecoder(nn.Module):
    """Decoder with FDR; see `detr.Decoder`. The first layer also predicts the boxes that all layers refine."""

    bins: Tensor

    def __init__(
        self,
        layers: Sequence[DecoderLayer],
        channels: int,
        num_classes: int,
        scale: float,
        *,
        style: Style,
        shares_head: bool = False,
    ) -> None:
        """`shares_head`: all layers have the same head of distances. In DEIMv2, all have the embedding of the first boxes."""
        super().__init__()
        self.layers, self.scale, self.embeds_once = nn.ModuleList(layers), scale, style.is_light
        self.query_pos_head = query_pos_head(channels, style)
        self.pre_bbox_head = MLP(channels, channels, 4, 3, style.activation)
        scores = [nn.Linear(channels, num_classes) for _ in layers]
        distances = [MLP(channels, channels, 4 * BINS, 3, style.activation) for _ in layers[: 1 if shares_head else None]]
        initialise_heads(scores, [*distances, self.pre_bbox_head])
        self.score_head, self.bbox_head = nn.ModuleList(scores), nn.ModuleList(distances)
        self.lqe_layers = nn.ModuleList(LocationQuality(style.activation) for _ in layers)
        self.register_buffer('bins', bin_distances(scale), persistent=False)

    def forward(self, x: Tensor, unactivated: Tensor, memory: Tensor, sizes: Sizes, mask: Tensor | None) -> Decoded:
        boxes = unactivated.sigmoid()
        blocks = cast(Sequence[DecoderLayer], self.layers)
        values = blocks[0].values(memory, sizes)
        layers, of_layers, initial = [], [], []
        before: Tensor | None = None  # contents after the layer before, detached
        references, distances = boxes, None
        embedding = self.query_pos_head(boxes).clamp(-10, 10)
        parts = zip(blocks, self.score_head, self.lqe_layers, strict=True)
        for number, (layer, score, quality) in enumerate(parts):
            refine = self.bbox_head[min(number, len(self.bbox_head) - 1)]
            if number > 0 and not self.embeds_once:
                embedding = self.query_pos_head(boxes).clamp(-10, 10)
            x = layer(x, embedding, boxes, values, mask)
            logits = score(x) if self.training or number == len(self.layers) - 1 else None
            if before is None:
                first = (self.pre_bbox_head(x).to(boxes.dtype) + inverse_sigmoid(boxes)).sigmoid()
                references = first.detach()
                if self.training and logits is not None:
                    initial.append(Queries(logits, first))
            # Each layer adds to the logits of the distances; the boxes go on without a gradient.
            change = refine(x if before is None else x + before)
            distances = change if distances is None else distances + change
            refined = move_sides(references, self.expected(distances), self.scale)
            boxes, before = refined.detach(), x.detach()
            if logits is not None:
                layers.append(Queries(quality(logits, distances), refined))
                of_layers.append(distances)
        if not self.training:
            return Decoded(tuple(layers))
        return Decoded(tuple(layers), tuple(of_layers), (references,), (self.bins.expand(len(x), -1),), tuple(initial))

    def expected(self, distances: Tensor) -> Tensor:
        """Expected distances [B, Q, 4] of the distributions with logits [B, Q, 4 * bins]."""
        logits = at_least_float32(distances)
        shares = logits.view(*logits.shape[:2], 4, BINS).softmax(-1)
        expected: Tensor = (shares * self.bins.to(shares.dtype)).sum(-1)
        return expected


def move_sides(boxes: Tensor, distances: Tensor, scale: float) -> Tensor:
    """Boxes [B, Q, 4] whose left, top, right and bottom sides lie `distances` (in units of side / scale) further out."""
    points, sides = boxes.chunk(2, -1)
    outer = (0.5 * scale + distances) * (sides / scale).repeat(1, 1, 2)
    low, high = outer.chunk(2, -1)
    return centres(torch.cat([points - low, points + high], -1))


class LocationQuality(nn.Module):
    """Location quality estimator (LQE): adds a number to the logits [B, Q, K], by the shapes of the distributions.

    Its input are the highest probabilities of each side and their mean: a sharp distribution is a sure one.
    """

    def __init__(self, activation: type[nn.Module]) -> None:
        super().__init__()
        self.reg_conf = MLP(4 * (TOP + 1), QUALITY_HIDDEN, 1, 2, activation)
        initialise_heads([], [self.reg_conf])

    def forward(self, logits: Tensor, distances: Tensor) -> Tensor:
        highest = distances.view(*distances.shape[:2], 4, BINS).softmax(-1).topk(TOP).values
        shape = torch.cat([highest, highest.mean(-1, keepdim=True)], -1).flatten(2)
        adjusted: Tensor = logits + self.reg_conf(shape.to(logits.dtype))
        return adjusted


SIZES = {
    'n': Shape(
        backbone=partial(hgnetv2),
        strides=(16, 32),
        channels=128,
        encoder_hidden=512,
        encoder_expansion=0.34,
        encoder_depth=0.5,
        decoder_channels=128,
        decoder_hidden=512,
        decoder_layers=3,
        points=(6, 6),
    ),
    's': Shape(backbone=partial(hgnetv2), encoder_expansion=0.5, encoder_depth=0.34, decoder_layers=3, points=POINTS),
    'm': Shape(backbone=partial(hgnetv2, size='b2'), encoder_depth=0.67, decoder_layers=4, points=POINTS),
    'l': Shape(backbone=partial(hgnetv2, size='b4', affine=False), points=POINTS),
    'x': Shape(backbone=partial(hgnetv2, size='b5', affine=False), channels=384, encoder_hidden=2048, points=POINTS),
}


def dfine(
    num_classes: int,
    *,
    size: Literal['n', 's', 'm', 'l', 'x'] = 'n',
    backbone: Annotated[partial[Backbone] | None, BACKBONES] = None,
    strides: tuple[int, ...] | None = None,
    channels: int | None = None,
    encoder_hidden: int | None = None,
    decoder_channels: int | None = None,
    decoder_layers: int | None = None,
    decoder_hidden: int | None = None,
    points: tuple[int, ...] | None = None,
    scale: float | None = None,
    queries: int = 300,
    denoising: int = 100,
    label_noise: float = 0.5,
    box_noise: float = 1.0,
) -> DETR:
    """D-FINE of one size as published; the options from `backbone` to `scale` replace those of the size.

    `strides` of the maps; `points` are read from each of them per head; `scale` (`reg_scale`): how fine the bins of the
    distances are. `denoising`: queries from noisy true boxes in training, 0 for none. Raises ValueError for another number of
    `points` than of strides, and sizes that do not fit.
    """
    shape = SIZES[size].changed(
        {
            'backbone': backbone,
            'strides': strides,
            'channels': channels,
            'encoder_hidden': encoder_hidden,
            'decoder_channels': decoder_channels,
            'decoder_layers': decoder_layers,
            'decoder_hidden': decoder_hidden,
            'points': points,
        }
    )
    width, unit = shape.decoder_channels, scale or (8.0 if size == 'x' else 4.0)
    return build(
        'dfine',
        num_classes,
        shape,
        QueryOptions(queries, denoising, label_noise, box_noise, swaps=True),
        partial(dfine_encoder, shape=shape),
        DFINEDecoder(build_layers(shape, 'bilinear', style=STYLE), width, num_classes, unit, style=STYLE),
        style=STYLE,
    )
