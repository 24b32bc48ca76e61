"""Hybrid encoder of RT-DETR and D-FINE: attention within the coarsest map, then a path aggregation network over all maps.

Zhao et al., DETRs Beat YOLOs on Real-time Object Detection, https://arxiv.org/abs/2304.08069; the blocks of D-FINE: Peng et
al., https://arxiv.org/abs/2410.13842. Shapes: B batch, C channels, N = h * w positions.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.detection.models.shape import Shape
from phalanx.nn.backbones.csp_rep_resnet import RepBlock
from phalanx.nn.layers import ConvBN, ConvBNSiLU, initialise_convs

HEADS, TEMPERATURE = 8, 10000.0  # of the attention and its sinusoidal position embedding


class HybridEncoder(nn.Module):
    """Maps of a backbone, the finest first, each half the size of the one before -> as many maps [B, channels, h, w]."""

    def __init__(
        self,
        in_channels: Sequence[int],
        channels: int,
        *,
        hidden: int,
        fusion: Callable[[], nn.Module],
        lateral: Callable[..., nn.Module],
        downsampling: Callable[[int], nn.Module],
        adds: bool = False,
    ) -> None:
        """`hidden`: of the attention layer; `fusion` builds the blocks -> [B, channels, h, w].

        Their input are two maps that are concatenated or, if it `adds`, their sum.
        """
        super().__init__()
        self.join = torch.add if adds else concatenate
        self.input_proj = nn.ModuleList(ConvBN(count, channels, 1) for count in in_channels)
        self.attention = EncoderLayer(channels, hidden)
        steps = range(len(in_channels) - 1)
        self.lateral_convs = nn.ModuleList(lateral(channels, channels, 1) for _ in steps)
        self.fpn_blocks = nn.ModuleList(fusion() for _ in steps)
        self.downsample_convs = nn.ModuleList(downsampling(channels) for _ in steps)
        self.pan_blocks = nn.ModuleList(fusion() for _ in steps)
        initialise_convs(self)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        levels = [project(x) for project, x in zip(self.input_proj, maps, strict=True)]
        levels[-1] = self.attention(levels[-1])
        # Top-down, the coarsest map first: `inner` ends with the finest.
        inner = [levels[-1]]
        for finer, reduce, block in zip(levels[-2::-1], self.lateral_convs, self.fpn_blocks, strict=True):
            inner[-1] = reduce(inner[-1])
            inner.append(block(self.join(F.interpolate(inner[-1], scale_factor=2.0), finer)))
        # Bottom-up: each map is fused with the halved output of the finer one.
        outputs = [inner[-1]]
        for coarser, halve, block in zip(inner[-2::-1], self.downsample_convs, self.pan_blocks, strict=True):
            outputs.append(block(self.join(halve(outputs[-1]), coarser)))
        return outputs


def concatenate(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y], 1)


class EncoderLayer(nn.Module):
    """Transformer layer over the positions of a map (AIFI), normalised after each sum: [B, C, h, w] -> [B, C, h, w]."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(channels, HEADS, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(channels, hidden), nn.Linear(hidden, channels)
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[2:]
        tokens = x.flatten(2).transpose(1, 2)
        # Queries and keys get the position embedding, values do not.
        placed = tokens + position_embedding(h, w, x.shape[1], x.device).to(x.dtype)
        tokens = self.norm1(tokens + attend(self.self_attn, placed, tokens))
        mixed: Tensor = self.norm2(tokens + self.linear2(F.gelu(self.linear1(tokens))))
        return mixed.transpose(1, 2).reshape(x.shape)


def attend(attention: nn.MultiheadAttention, placed: Tensor, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Self-attention: queries and keys from `placed`, values from `x` [B, N, C] -> [B, N, C]; `mask` bool, True where unseen.

    torch's own forward pass transposes its inputs first, so that each of its products copies them.
    """
    (B, N, C), heads = x.shape, attention.num_heads
    (look, values), (look_bias, bias) = (
        torch.split(each, [2 * C, C]) for each in (attention.in_proj_weight, attention.in_proj_bias)
    )
    queries, keys = F.linear(placed, look, look_bias).view(B, N, 2, heads, -1).permute(2, 0, 3, 1, 4)
    of_heads = F.linear(x, values, bias).view(B, N, heads, -1).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(queries, keys, of_heads, None if mask is None else ~mask)
    out: Tensor = attention.out_proj(mixed.transpose(1, 2).reshape(B, N, C))
    return out


def position_embedding(h: int, w: int, channels: int, device: torch.device) -> Tensor:
    """Sinusoidal position embedding [N, C]: a quarter of the channels each for sine and cosine of the row and the column."""
    quarter = torch.arange(channels // 4, device=device, dtype=torch.float64) / (channels // 4)
    frequencies = TEMPERATURE**-quarter
    rows, columns = (torch.arange(count, device=device)[:, None] * frequencies for count in (h, w))
    waves = [torch.cat([angles.sin(), angles.cos()], 1) for angles in (rows, columns)]  # [h, C / 2], [w, C / 2]
    down, right = waves[0][:, None].expand(-1, w, -1), waves[1].expand(h, -1, -1)
    return torch.cat([down, right], 2).flatten(0, 1)


class CSPRep(nn.Module):
    """Cross-stage partial block of RepVGG blocks, [B, in, h, w] -> [B, out, h, w]: the two branches are added."""

    def __init__(self, in_channels: int, out_channels: int, *, blocks: int, expansion: float = 1.0) -> None:
        super().__init__()
        inner = int(out_channels * expansion)
        self.conv1, self.conv2 = ConvBNSiLU(in_channels, inner, 1), ConvBNSiLU(in_channels, inner, 1)
        self.bottlenecks = nn.Sequential(*(RepBlock(inner, alpha=False) for _ in range(blocks)))
        self.conv3 = nn.Identity() if inner == out_channels else ConvBNSiLU(inner, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.conv3(self.bottlenecks(self.conv1(x)) + self.conv2(x))
        return mixed


class JointCSPRep(nn.Module):
    """`CSPRep` of DEIMv2, whose two branches begin with one convolution and one norm."""

    def __init__(self, in_channels: int, channels: int, *, blocks: int) -> None:
        super().__init__()
        self.conv1 = ConvBNSiLU(in_channels, 2 * channels, 1)
        self.bottlenecks = nn.Sequential(*(RepBlock(channels, alpha=False) for _ in range(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        beside, through = self.conv1(x).chunk(2, 1)
        mixed: Tensor = beside + self.bottlenecks(through)
        return mixed


class CSPELAN(nn.Module):
    """Block of D-FINE (RepNCSPELAN4), [B, in, h, w] -> [B, C, h, w]: the outputs of two CSP blocks in a row are kept."""

    def __init__(self, in_channels: int, channels: int, inner: int, csp: Callable[[int, int], nn.Module]) -> None:
        """`csp` builds a CSP block from its numbers of channels."""
        super().__init__()
        self.cv1 = ConvBNSiLU(in_channels, 2 * channels, 1)
        self.cv2 = nn.Sequential(csp(channels, inner), ConvBNSiLU(inner, inner, 3))
        self.cv3 = nn.Sequential(csp(inner, inner), ConvBNSiLU(inner, inner, 3))
        self.cv4 = ConvBNSiLU(2 * (channels + inner), channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv1(x)
        first = self.cv2(x[:, x.shape[1] // 2 :])
        mixed: Tensor = self.cv4(torch.cat([x, first, self.cv3(first)], 1))
        return mixed


def rtdetr_encoder(in_channels: Sequence[int], shape: Shape) -> HybridEncoder:
    """Hybrid encoder of RT-DETR and RT-DETRv2."""
    channels = shape.channels
    blocks = round(3 * shape.encoder_depth)
    fusion = partial(CSPRep, 2 * channels, channels, blocks=blocks, expansion=shape.encoder_expansion)
    halve = partial(_convolution_of_stride_2, ConvBNSiLU)
    return HybridEncoder(
        in_channels, channels, hidden=shape.encoder_hidden, fusion=fusion, lateral=ConvBNSiLU, downsampling=halve
    )


def dfine_encoder(in_channels: Sequence[int], shape: Shape, *, adds: bool = False) -> HybridEncoder:
    """Hybrid encoder of D-FINE: no activations outside its blocks, and depthwise downsampling; `adds` as in DEIMv2."""
    return HybridEncoder(
        in_channels,
        shape.channels,
        hidden=shape.encoder_hidden,
        fusion=partial(elan, shape, adds=adds),
        lateral=ConvBN,
        downsampling=_depthwise_halving,
        adds=adds,
    )


def elan(shape: Shape, *, adds: bool) -> CSPELAN:
    """Block that fuses two maps; `adds`: of their sum, with the blocks of DEIMv2."""
    csp = partial(JointCSPRep if adds else CSPRep, blocks=round(3 * shape.encoder_depth))
    inner = round(shape.encoder_expansion * shape.channels // 2)
    return CSPELAN(shape.channels * (1 if adds else 2), shape.channels, inner, csp)


def _convolution_of_stride_2(build: Callable[..., nn.Module], channels: int) -> nn.Module:
    return build(channels, channels, 3, stride=2)


def _depthwise_halving(channels: int) -> nn.Module:
    return nn.Sequential(ConvBN(channels, channels, 1), ConvBN(channels, channels, 3, stride=2, groups=channels))
