"""D-FINE: a detector with queries whose layers refine distributions of the distances of the sides.

Peng et al., D-FINE: Redefine Regression Task in DETRs as Fine-grained Distribution Refinement (FDR),
https://arxiv.org/abs/2410.13842. Shapes as in `detr`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, cast

import torch
from torch import Tensor, nn

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
from phalanx.families.detection.models.hybrid_encoder import dfine_encoder
from phalanx.families.detection.models.rtdetr import check_sizes
from phalanx.families.detection.queries import Decoded, Queries, centres, inverse_sigmoid
from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.hgnetv2 import hgnetv2
from phalanx.nn.precision import at_least_float32

BINS, REACH = 33, 0.5  # of the distribution of a distance; REACH: `up` of the original
TOP, QUALITY_HIDDEN = 4, 64  # of the estimator of the quality of a location (LQE)


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

    def __init__(self, layers: Sequence[DecoderLayer], channels: int, num_classes: int, scale: float) -> None:
        super().__init__()
        self.layers, self.scale = nn.ModuleList(layers), scale
        self.query_pos_head, self.pre_bbox_head = query_pos_head(channels), MLP(channels, channels, 4, 3)
        scores = [nn.Linear(channels, num_classes) for _ in layers]
        distances = [MLP(channels, channels, 4 * BINS, 3) for _ in layers]
        initialise_heads(scores, [*distances, self.pre_bbox_head])
        self.score_head, self.bbox_head = nn.ModuleList(scores), nn.ModuleList(distances)
        self.lqe_layers = nn.ModuleList(LocationQuality() for _ in layers)
        self.register_buffer('bins', bin_distances(scale), persistent=False)

    def forward(self, x: Tensor, unactivated: Tensor, memory: Tensor, sizes: Sizes, mask: Tensor | None) -> Decoded:
        boxes = unactivated.sigmoid()
        blocks = cast(Sequence[DecoderLayer], self.layers)
        values = blocks[0].values(memory, sizes)
        layers, of_layers, initial = [], [], []
        before: Tensor | None = None  # contents after the layer before, detached
        references, distances = boxes, None
        parts = zip(blocks, self.score_head, self.bbox_head, self.lqe_layers, strict=True)
        for number, (layer, score, refine, quality) in enumerate(parts):
            x = layer(x, self.query_pos_head(boxes).clamp(-10, 10), boxes, values, mask)
            if before is None:
                first = (self.pre_bbox_head(x).to(boxes.dtype) + inverse_sigmoid(boxes)).sigmoid()
                references = first.detach()
                if self.training:
                    initial.append(Queries(score(x), first))
            # Each layer adds to the logits of the distances; the boxes go on without a gradient.
            change = refine(x if before is None else x + before)
            distances = change if distances is None else distances + change
            refined = move_sides(references, self.expected(distances), self.scale)
            boxes, before = refined.detach(), x.detach()
            if self.training or number == len(self.layers) - 1:
                layers.append(Queries(quality(score(x), distances), refined))
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

    def __init__(self) -> None:
        super().__init__()
        self.reg_conf = MLP(4 * (TOP + 1), QUALITY_HIDDEN, 1, 2)
        initialise_heads([], [self.reg_conf])

    def forward(self, logits: Tensor, distances: Tensor) -> Tensor:
        highest = distances.view(*distances.shape[:2], 4, BINS).softmax(-1).topk(TOP).values
        shape = torch.cat([highest, highest.mean(-1, keepdim=True)], -1).flatten(2)
        adjusted: Tensor = logits + self.reg_conf(shape.to(logits.dtype))
        return adjusted


def dfine(
    num_classes: int,
    *,
    backbone: Annotated[partial[Backbone], BACKBONES] = partial(hgnetv2),
    strides: tuple[int, ...] = (16, 32),
    channels: int = 128,
    encoder_hidden: int = 512,
    encoder_expansion: float = 0.34,
    encoder_depth: float = 0.5,
    decoder_layers: int = 3,
    decoder_hidden: int = 512,
    queries: int = 300,
    points: tuple[int, ...] = (6, 6),
    scale: float = 4.0,
    denoising: int = 100,
    label_noise: float = 0.5,
    box_noise: float = 1.0,
) -> DETR:
    """D-FINE; the defaults are those of size N.

    `strides` of the maps; `points` are read from each of them per head; `scale` (`reg_scale`): how fine the bins of the
    distances are. `denoising`: queries from noisy true boxes in training, 0 for none. Raises ValueError for another number of
    `points` than of strides, and sizes that do not fit.
    """
    check_sizes(channels, decoder_layers, queries, denoising, points, strides)
    maps = backbone(strides)
    places = select_maps(maps, strides, 'dfine')
    in_channels = [maps.channels[place] for place in places]
    layers = [DecoderLayer(channels, decoder_hidden, points, 'bilinear', gated=True) for _ in range(decoder_layers)]
    encoder = dfine_encoder(in_channels, channels, hidden=encoder_hidden, expansion=encoder_expansion, depth=encoder_depth)
    return DETR(
        maps,
        places,
        encoder,
        project_maps(len(strides), channels, channels, always=False),
        QuerySelection(channels, num_classes, queries),
        Denoising(num_classes, channels, count=denoising, label_noise=label_noise, box_noise=box_noise, swaps=True)
        if denoising
        else None,
        DFINEDecoder(layers, channels, num_classes, scale),
    )
