"""PP-YOLOE and PP-YOLOE+: one-stage detectors without anchor boxes.

Xu et al., PP-YOLOE: An evolved version of YOLO, https://arxiv.org/abs/2203.16250. Layer order, channels and initial weights as
in PaddleDetection. Shapes: B batch, C channels, A anchors, K classes.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.detection.decode import REACH, Raw, decode_boxes
from phalanx.families.detection.models.transformer import TransformerEncoder
from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.csp_rep_resnet import BasicBlock, CSPStage, csp_rep_resnet, fuse
from phalanx.nn.layers import ConvBNSiLU, initialise_convs

SIZES = {  # depth and width relative to l
    'n': (0.33, 0.25),  # ours, not in PaddleDetection
    't': (0.33, 0.375),
    's': (0.33, 0.5),
    'm': (0.67, 0.75),
    'l': (1.0, 1.0),
    'x': (1.33, 1.25),
}
STRIDES = (32, 16, 8, 4)  # of the levels, in the order of the output; networks with three levels use the first three
CHANNELS = (768, 384, 192, 64)  # of the neck's maps, for size l


class PPYOLOE(nn.Module):
    """images [B, 3, H, W], H and W multiples of 32 -> Raw, in training and in evaluation."""

    def __init__(self, num_classes: int, backbone: Backbone, neck: 'CSPPAN', reach: tuple[int, int]) -> None:
        super().__init__()
        self.backbone, self.neck, self.reach = backbone, neck, reach
        self.maps = select_maps(backbone, STRIDES[: len(neck.channels)][::-1], 'ppyoloe')
        heads = [Head(channels, num_classes, reach[1] - reach[0] + 1) for channels in neck.channels]
        self.heads = nn.ModuleList(heads)
        for part in (neck, self.heads):
            initialise_convs(part)
        for head in heads:
            head.initialise()

    def forward(self, images: Tensor) -> Raw:
        """Raises ValueError for a height or width that 32 does not divide."""
        check_input_size(images)
        maps = self.backbone(images)
        levels = self.neck([maps[place] for place in self.maps])
        outputs = [head(level) for head, level in zip(self.heads, levels, strict=True)]
        # One row per anchor, level by level: [B, C, h, w] -> [B, h * w, C].
        logits, distances = (
            torch.cat([output[part].flatten(2).transpose(1, 2) for output in outputs], dim=1) for part in (0, 1)
        )
        sizes = [(level.shape[2], level.shape[3]) for level in levels]
        dtype = torch.promote_types(images.dtype, torch.float32)  # half precision cannot represent all pixel coordinates
        points, strides = anchor_points(sizes, dtype, images.device)
        return Raw(logits, distances, points, strides, tuple(h * w for h, w in sizes), tuple(levels), self.reach[0])

    def decode(self, raw: Raw) -> tuple[Tensor, Tensor]:
        """Boxes [B, A, 4] in pixels of the input, and scores [B, A, K]."""
        return decode_boxes(raw), raw.logits.float().sigmoid()

    def switch_to_deploy(self) -> Self:
        """Re-parameterise: the network then computes the same with fewer convolutions, for evaluation only."""
        fuse(self.eval())
        return self


def check_input_size(images: Tensor) -> None:
    """Raise ValueError for a height or width that 32 does not divide."""
    H, W = images.shape[-2:]
    if H % STRIDES[0] or W % STRIDES[0]:
        raise ValueError(f'images are {W} x {H}; width and height must be multiples of {STRIDES[0]}')


def anchor_points(sizes: Sequence[tuple[int, int]], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Centres (x, y) of the cells of maps of `sizes` (h, w), [A, 2], and their strides, [A], in pixels."""
    points, strides = [], []
    for (h, w), stride in zip(sizes, STRIDES, strict=False):
        # Centres of cells, as in PaddleDetection with an offset of 0.5.
        x, y = ((torch.arange(count, dtype=dtype, device=device) + 0.5) * stride for count in (w, h))
        points.append(torch.stack([x.expand(h, w), y[:, None].expand(h, w)], dim=-1).view(-1, 2))
        strides.append(x.new_full((h * w,), stride))
    return torch.cat(points), torch.cat(strides)


class CSPPAN(nn.Module):
    """Neck CustomCSPPAN: fuses maps of the backbone, finest first, top-down, then bottom-up; returns maps coarsest first.

    A path aggregation network (PAN, https://arxiv.org/abs/1803.01534) of cross-stage-partial (CSP) stages. Each map keeps its
    size and gets `channels`.
    """

    def __init__(self, in_channels: Sequence[int], *, width: float, depth: float, alpha: bool, encoder: int) -> None:
        """`in_channels`: of the maps, the coarsest first; `alpha`: as in RepBlock; `encoder`: transformer layers."""
        super().__init__()
        self.encoder = TransformerEncoder(in_channels[0], encoder) if encoder else nn.Identity()
        self.channels = channels = [round(count * width) for count in CHANNELS[: len(in_channels)]]
        blocks = max(round(3 * depth), 1)
        self.finer = nn.ModuleList([ConvBNSiLU(count, count // 2, 1) for count in channels[:-1]])
        # Channels that each level gets from the coarser one, halved by `finer`.
        above = [0, *(count // 2 for count in channels[:-1])]
        self.top_down = nn.ModuleList(
            neck_stage(own + more, out, blocks, alpha=alpha, pyramid=not more)
            for own, more, out in zip(in_channels, above, channels, strict=True)
        )
        self.coarser = nn.ModuleList([ConvBNSiLU(count, count, 3, stride=2) for count in channels[1:]])
        self.bottom_up = nn.ModuleList(
            [neck_stage(coarse + fine, coarse, blocks, alpha=alpha) for coarse, fine in pairwise(channels)]
        )

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        outputs: list[Tensor] = []
        # Top-down, coarsest map first: each level is fused with the upsampled output of the coarser one.
        for level, own in enumerate([self.encoder(maps[-1]), *reversed(maps[:-1])]):
            if level > 0:
                above = F.interpolate(self.finer[level - 1](outputs[-1]), scale_factor=2.0)
                own = torch.cat([above, own], dim=1)
            outputs.append(self.top_down[level](own))
        # Bottom-up: each level is fused with the downsampled output of the finer one.
        for level in reversed(range(len(maps) - 1)):
            x = torch.cat([self.coarser[level](outputs[level + 1]), outputs[level]], dim=1)
            outputs[level] = self.bottom_up[level](x)
        return outputs


def neck_stage(in_channels: int, out_channels: int, num_blocks: int, *, alpha: bool, pyramid: bool = False) -> CSPStage:
    """CSP stage of the neck: [B, in, H, W] -> [B, out, H, W]; with SPP (`pyramid`) after half of the blocks."""
    half = out_channels // 2
    blocks: list[nn.Module] = [BasicBlock(half, shortcut=False, alpha=alpha) for _ in range(num_blocks)]
    if pyramid:
        blocks.insert((num_blocks + 1) // 2, SPP(half))
    return CSPStage(in_channels, half, out_channels, blocks=blocks, attention=nn.Identity())


class SPP(nn.Module):
    """Spatial pyramid pooling (SPP): max pooling over 5, 9 and 13 pixels, concatenated; [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = ConvBNSiLU(4 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for _ in range(3):  # two poolings over 5 equal one over 9, three one over 13
            maps.append(F.max_pool2d(maps[-1], 5, stride=1, padding=2))
        pooled: Tensor = self.conv(torch.cat(maps, dim=1))
        return pooled


class Head(nn.Module):
    """Efficient task-aligned head (ET-head): a map [B, C, h, w] -> class logits [B, K, h, w], distances [B, 4 * bins, h, w].

    Classification and regression have an attention each; `classify` and `measure` are pred_cls and pred_reg of PaddleDetection.
    """

    def __init__(self, channels: int, num_classes: int, bins: int) -> None:
        super().__init__()
        self.class_attention, self.distance_attention = ESEAttn(channels), ESEAttn(channels)
        self.classify = nn.Conv2d(channels, num_classes, 3, padding=1)
        self.measure = nn.Conv2d(channels, 4 * bins, 3, padding=1)

    def initialise(self) -> None:
        """Initialise to a probability of 0.01 per class, and to uniform distributions of distances."""
        # Weights near zero: sigmoid(fc) starts at 1/2 for all channels.
        for attention in (self.class_attention, self.distance_attention):
            nn.init.normal_(attention.fc.weight, std=0.001)
        for conv, bias in ((self.classify, -math.log((1 - 0.01) / 0.01)), (self.measure, 1.0)):
            assert conv.bias is not None
            nn.init.zeros_(conv.weight)
            nn.init.constant_(conv.bias, bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # Both attentions use the same global average, computed once.
        means = x.mean((2, 3), keepdim=True)
        return self.classify(self.class_attention(x, means) + x), self.measure(self.distance_attention(x, means))


class ESEAttn(nn.Module):
    """ESE attention (effective squeeze-excitation): conv(x * sigmoid(fc(means))), `means` [B, C, 1, 1] of x [B, C, h, w]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Conv2d(channels, channels, 1)
        self.conv = ConvBNSiLU(channels, channels, 1)

    def forward(self, x: Tensor, means: Tensor) -> Tensor:
        mixed: Tensor = self.conv(x * torch.sigmoid(self.fc(means)))
        return mixed


def ppyoloe(
    num_classes: int,
    *,
    size: Literal['n', 't', 's', 'm', 'l', 'x'] = 's',
    backbone: Annotated[partial[Backbone], BACKBONES] = partial(csp_rep_resnet),
    plus: bool = False,
    levels: Literal[3, 4] = 3,
    neck_alpha: bool = False,
    encoder: int = 0,
    reach: tuple[int, int] = REACH,
) -> PPYOLOE:
    """PP-YOLOE of one size, or PP-YOLOE+ (`plus`), whose backbone has learned factors in its re-parameterised blocks.

    `backbone`: CSPRepResNet of `size` as published; with another backbone, `size` is that of the neck alone.
    Size `t` has the factors of PP-YOLOE+_t-aux, but neither its auxiliary head nor its narrower neck; size `n`, half as wide
    as `s`, is ours, for CPUs. `neck_alpha`: learned factors in the neck, too. Four `levels` (P2 in PaddleDetection) add anchors
    4 pixels apart, for small objects.
    `encoder`: number of transformer layers over the coarsest map; `reach`: minimum and maximum distance of a side from an
    anchor, in strides. PP-YOLOE-SOD has 4 layers and a reach from -2, so that anchors beside a small object can predict it.
    Raises ValueError if the reach does not contain 0, `encoder` is negative, `plus` is set with another backbone than
    CSPRepResNet, or the backbone has no maps of strides 8 to 32 (4 to 32 with four levels).
    """
    if not reach[0] <= 0 < reach[1] or encoder < 0:
        raise ValueError(f'reach must rise from 0 or less, and encoder be at least 0; got {reach[0]}, {reach[1]} and {encoder}')
    depth, width = SIZES[size]
    is_own = backbone.func is csp_rep_resnet
    if plus and not is_own:
        raise ValueError('plus is an option of the backbone csp_rep_resnet; leave out plus, or backbone')
    strides = STRIDES[:levels][::-1]
    maps = backbone(strides, width, depth, plus) if is_own else backbone(strides)
    channels = [maps.channels[place] for place in select_maps(maps, strides, 'ppyoloe')]
    neck = CSPPAN(channels[::-1], width=width, depth=depth, alpha=neck_alpha, encoder=encoder)
    return PPYOLOE(num_classes, maps, neck, reach)
