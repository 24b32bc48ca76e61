"""Parts shared by RT-DETR and D-FINE: selection of queries, decoder layers, and the network around them.

Shapes: B batch, Q queries, D denoising queries before them, C channels, K classes, N positions of all maps.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.detection.loss.assign import Truths
from phalanx.families.detection.models.deformable import DeformableAttention, Sampling
from phalanx.families.detection.models.denoising import Denoising, Noisy
from phalanx.families.detection.models.hybrid_encoder import attend
from phalanx.families.detection.models.ppyoloe import check_input_size
from phalanx.families.detection.models.shape import QueryOptions, Shape, Style
from phalanx.families.detection.queries import Decoded, Queries, QueryRaw, in_pixels
from phalanx.nn.backbones import Backbone, select_maps
from phalanx.nn.backbones.csp_rep_resnet import fuse
from phalanx.nn.layers import ConvBN

HEADS = 8
ANCHOR_SIZE, BORDER = 0.05, 0.01  # sides of the anchors of the finest map; anchors this near to the border are left out
PRIOR = 0.01  # probability of each class before training
Sizes = Sequence[tuple[int, int]]  # (h, w) of each map


class Decoder(Protocol):
    """Module: contents [B, D + Q, C], logits of boxes [B, D + Q, 4], memory [B, N, C], sizes of maps, mask -> `Decoded`."""

    def __call__(
        self, content: Tensor, unactivated: Tensor, memory: Tensor, sizes: Sizes, mask: Tensor | None, /
    ) -> Decoded: ...


class DETR(nn.Module):
    """images [B, 3, H, W], H and W multiples of 32, and in training the true boxes -> `QueryRaw`.

    Without `truths`, a training pass has no denoising queries.
    """

    takes_truths = True

    def __init__(
        self,
        backbone: Backbone,
        maps: Sequence[int],
        encoder: nn.Module,
        input_proj: nn.ModuleList,
        select: 'QuerySelection',
        denoising: Denoising | None,
        decoder: Decoder,
    ) -> None:
        """`maps`: indices of those of the backbone that the encoder takes."""
        super().__init__()
        self.backbone, self.maps, self.encoder, self.input_proj = backbone, tuple(maps), encoder, input_proj
        self.select, self.denoising, self.decoder = select, denoising, decoder

    @property
    def rounds_places(self) -> bool:
        """True with discrete sampling: half-way between two pixels, the last bit of a number chooses the one that is read."""
        attentions = (module for module in self.modules() if isinstance(module, DeformableAttention))
        return any(attention.sampling == 'discrete' for attention in attentions)

    def forward(self, images: Tensor, truths: Truths | None = None) -> QueryRaw:
        """Raises ValueError for a height or width that 32 does not divide."""
        check_input_size(images)
        memory, sizes = self.encode(images)
        content, unactivated, selection = self.select(memory, sizes)
        size = torch.cat([images.new_full((images.shape[0], 1), side, dtype=torch.long) for side in images.shape[:1:-1]], 1)
        if not (self.training and self.denoising is not None and truths is not None):
            decoded = self.decoder(content, unactivated, memory, sizes, None)
            return QueryRaw(decoded, size, (selection,) if self.training else ())
        noisy: Noisy = self.denoising(truths, size)
        content = torch.cat([noisy.content.to(content.dtype), content], 1)
        unactivated = torch.cat([noisy.unactivated.to(unactivated.dtype), unactivated], 1)
        decoded = self.decoder(content, unactivated, memory, sizes, noisy.mask(selection.logits.shape[1]))
        of_noise, of_selection = split_queries(decoded, noisy.content.shape[1])
        return QueryRaw(of_selection, size, (selection,), (of_noise,))

    def encode(self, images: Tensor) -> tuple[Tensor, list[tuple[int, int]]]:
        """Positions [B, N, C] of the encoder's maps and the sizes (h, w) of these; the backbone's maps are freed on return."""
        maps = self.backbone(images)
        encoded = self.encoder([maps[place] for place in self.maps])
        levels = [project(x) for project, x in zip(self.input_proj, encoded, strict=True)]
        memory = torch.cat([x.flatten(2).transpose(1, 2) for x in levels], 1)
        return memory, [(x.shape[2], x.shape[3]) for x in levels]

    def without_padding(self, raw: QueryRaw, most: int) -> QueryRaw:
        """Drop the denoising queries beyond those for `most` true boxes per image."""
        if self.denoising is None or not raw.denoising:
            return raw
        return raw._replace(denoising=(split_queries(raw.denoising[0], self.denoising.used(most))[0],))

    def decode(self, raw: QueryRaw) -> tuple[Tensor, Tensor]:
        """Boxes [B, Q, 4] in pixels of the input, and scores [B, Q, K]."""
        logits, boxes = raw.decoded.layers[-1]
        return in_pixels(boxes, raw.size), logits.float().sigmoid()

    def switch_to_deploy(self) -> Self:
        """Re-parameterise: the network then computes the same with fewer convolutions, for evaluation only."""
        fuse(self.eval())
        return self


def split_queries(decoded: Decoded, first: int) -> tuple[Decoded, Decoded]:
    """Split off the `first` queries of all predictions."""

    def part(rows: slice) -> Decoded:
        layers, initial = (
            tuple(Queries(logits[:, rows], boxes[:, rows]) for logits, boxes in group)
            for group in (decoded.layers, decoded.initial)
        )
        distances, references = (tuple(x[:, rows] for x in group) for group in (decoded.distances, decoded.references))
        return Decoded(layers, distances, references, decoded.bins, initial)

    return part(slice(first)), part(slice(first, None))


class QuerySelection(nn.Module):
    """Memory [B, N, C] -> contents [B, Q, C] and logits [B, Q, 4] of the boxes of the best positions, and their predictions.

    The best are those with the highest logit of any class; Q is N if there are fewer positions. No gradient flows to the
    decoder's queries.
    """

    def __init__(self, channels: int, num_classes: int, queries: int, *, style: Style) -> None:
        super().__init__()
        self.queries = queries
        self.enc_output: nn.Module = nn.Identity()
        if not style.is_light:
            project = nn.Linear(channels, channels)
            nn.init.xavier_uniform_(project.weight)
            self.enc_output = nn.Sequential(project, nn.LayerNorm(channels))
        self.enc_score_head = nn.Linear(channels, num_classes)
        self.enc_bbox_head = MLP(channels, channels, 4, 3, style.activation)
        initialise_heads([self.enc_score_head], [self.enc_bbox_head])

    def forward(self, memory: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor, Queries]:
        anchors, is_valid = build_anchors(sizes, torch.promote_types(memory.dtype, torch.float32), memory.device)
        memory = self.enc_output(memory * is_valid.to(memory.dtype))
        logits = self.enc_score_head(memory)
        best = logits.amax(-1).topk(min(self.queries, memory.shape[1])).indices[..., None]
        content = memory.gather(1, best.expand(-1, -1, memory.shape[2]))
        unactivated = self.enc_bbox_head(content).to(anchors.dtype) + anchors[best[..., 0]]
        selection = Queries(logits.gather(1, best.expand(-1, -1, logits.shape[2])), unactivated.sigmoid())
        return content.detach(), unactivated.detach(), selection


def build_anchors(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Logits [N, 4] of one square box per position, twice as large for each coarser map, and bool [N, 1] where they are valid.

    The logits of invalid anchors are the largest number, so that their boxes are at 1.
    """
    anchors = []
    for level, (h, w) in enumerate(sizes):
        y, x = ((torch.arange(count, dtype=dtype, device=device) + 0.5) / count for count in (h, w))
        side = x.new_full((h, w), ANCHOR_SIZE * 2**level)
        anchors.append(torch.stack([x.expand(h, w), y[:, None].expand(h, w), side, side], -1).flatten(0, 1))
    boxes = torch.cat(anchors)
    is_valid = ((boxes > BORDER) & (boxes < 1 - BORDER)).all(-1, keepdim=True)
    return torch.where(is_valid, (boxes / (1 - boxes)).log(), torch.finfo(boxes.dtype).max), is_valid


class DecoderLayer(nn.Module):
    """Attention among queries, to the maps, and two linear layers: [B, Q, C] -> [B, Q, C].

    A learned gate or a sum joins the attention to the maps with the query, by `style`.
    """

    def __init__(self, channels: int, hidden: int, points: Sequence[int], sampling: Sampling, *, style: Style) -> None:
        """`points` of each map and head."""
        super().__init__()
        Norm, light = style.norm, style.is_light
        self.self_attn = nn.MultiheadAttention(channels, HEADS, batch_first=True)
        self.norm1 = Norm(channels)
        self.cross_attn = DeformableAttention(channels, HEADS, points, sampling, projects=style.projects)
        self.join = Gate(channels, Norm) if style.is_gated else SumWithNorm(channels, Norm)
        # With SwiGLU, the first layer has two halves, of which one weights the other.
        self.activation = swiglu if light else F.relu
        self.linear1, self.linear2 = nn.Linear(channels, hidden), nn.Linear(hidden // 2 if light else hidden, channels)
        self.norm3 = Norm(channels)
        for layer in (self.linear1, self.linear2):
            nn.init.xavier_uniform_(layer.weight)
            if light:
                nn.init.zeros_(layer.bias)

    def values(self, memory: Tensor, sizes: Sizes) -> list[Tensor]:
        """Maps that the attention reads; the same for all layers of D-FINE, which do not project them."""
        return self.cross_attn.values(memory, sizes)

    def forward(self, x: Tensor, embedding: Tensor, boxes: Tensor, values: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        """`embedding` [B, Q, C] of `boxes` [B, Q, 4]; `mask` bool [Q, Q], True where a query does not see another."""
        placed = x + embedding
        x = self.norm1(x + attend(self.self_attn, placed, x, mask))
        x = self.join(x, self.cross_attn(x + embedding, boxes, values))
        x = x + self.linear2(self.activation(self.linear1(x)))
        mixed: Tensor = self.norm3(x.clamp(-65504, 65504))  # the range of float16
        return mixed


def swiglu(x: Tensor) -> Tensor:
    """SiLU of the first half of the channels times the second half (Shazeer, https://arxiv.org/abs/2002.05202)."""
    gate, values = x.chunk(2, -1)
    return F.silu(gate) * values


class SumWithNorm(nn.Module):
    """Sum of two tensors, then a norm."""

    def __init__(self, channels: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm = norm(channels)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.norm(x + y)
        return out


class Gate(nn.Module):
    """Sum of two tensors, each multiplied by a learned gate per channel, then a norm."""

    def __init__(self, channels: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.gate, self.norm = nn.Linear(2 * channels, 2 * channels), norm(channels)
        for parameter in self.gate.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        of_x, of_y = self.gate(torch.cat([x, y], -1)).sigmoid().chunk(2, -1)
        out: Tensor = self.norm(of_x * x + of_y * y)
        return out


class MLP(nn.Module):
    """Linear layers with an activation between them: [..., in] -> [..., out]."""

    def __init__(
        self, in_channels: int, hidden: int, out_channels: int, layers: int, activation: type[nn.Module] = nn.ReLU
    ) -> None:
        super().__init__()
        self.activation = activation(inplace=True)
        widths = [in_channels, *(hidden,) * (layers - 1), out_channels]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        out: Tensor = self.layers[-1](x)
        return out


def query_pos_head(channels: int, style: Style) -> MLP:
    """Embedding of boxes [B, Q, 4] -> [B, Q, C], added to the queries in each attention."""
    head = MLP(4, channels, channels, 3, style.activation) if style.is_light else MLP(4, 2 * channels, channels, 2)
    for layer in head.layers:
        assert isinstance(layer, nn.Linear)
        nn.init.xavier_uniform_(layer.weight)
    return head


def initialise_heads(scores: Sequence[nn.Linear], boxes: Sequence[MLP]) -> None:
    """Initialise to a probability of 0.01 per class, and to no change of the boxes."""
    for head in scores:
        nn.init.constant_(head.bias, -math.log((1 - PRIOR) / PRIOR))
    for mlp in boxes:
        for parameter in mlp.layers[-1].parameters():
            nn.init.zeros_(parameter)


def project_maps(count: int, in_channels: int, channels: int, *, always: bool) -> nn.ModuleList:
    """Projections of the encoder's maps to the channels of the decoder; with `always`, even of those that have them."""
    if in_channels == channels and not always:
        return nn.ModuleList(nn.Identity() for _ in range(count))
    convs = [ConvBN(in_channels, channels, 1) for _ in range(count)]
    for conv in convs:
        nn.init.xavier_uniform_(conv.conv.weight)
    return nn.ModuleList(convs)


def build_layers(shape: Shape, sampling: Sampling, *, style: Style) -> list[DecoderLayer]:
    """Layers of a decoder of this shape."""
    sizes = shape.decoder_channels, shape.decoder_hidden, shape.points
    return [DecoderLayer(*sizes, sampling, style=style) for _ in range(shape.decoder_layers)]


def build(
    name: str,
    num_classes: int,
    shape: Shape,
    options: QueryOptions,
    encoder: Callable[[Sequence[int]], nn.Module],
    decoder: Decoder,
    *,
    style: Style,
) -> DETR:
    """Network `name`. `encoder` is built from the channels of the backbone's maps."""
    options.check()
    maps = shape.backbone(shape.strides)
    places = select_maps(maps, shape.strides, name)
    channels, noise = shape.decoder_channels, options
    denoising = Denoising(
        num_classes,
        channels,
        count=noise.denoising,
        label_noise=noise.label_noise,
        box_noise=noise.box_noise,
        swaps=noise.swaps,
    )
    return DETR(
        maps,
        places,
        encoder([maps.channels[place] for place in places]),
        project_maps(len(shape.points), shape.channels, channels, always=style.projects),
        QuerySelection(channels, num_classes, options.queries, style=style),
        denoising if options.denoising else None,
        decoder,
    )
