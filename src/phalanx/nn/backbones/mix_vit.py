"""MiT, the Mix Transformer (backbone of SegFormer): four stages with efficient self-attention and Mix-FFN.

Xie et al., SegFormer: Simple and Efficient Design for Semantic Segmentation with Transformers, https://arxiv.org/abs/2105.15203.
Layer order, norms and initial weights as in PaddleSeg. Shapes: B batch, C channels, N = h * w tokens of a map.
"""

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.layers import DepthwiseConv2d, Stride, run_stages
from phalanx.nn.stochastic import DropPath

HEADS, SR_RATIOS = (1, 2, 5, 8), (8, 4, 2, 1)  # of the four stages: attention heads, spatial reduction of keys and values


class MixViT(nn.Module):
    """images [B, 3, H, W] -> maps of strides 4, 8, 16 and 32, with `channels`."""

    strides = (4, 8, 16, 32)

    def __init__(self, channels: Sequence[int], blocks: Sequence[int], *, drop_path: float) -> None:
        """`blocks` per stage; `drop_path`: drop probability of the last block; it falls linearly to 0 at the first."""
        super().__init__()
        self.channels = tuple(channels)
        # Stochastic depth: linear over all blocks, split by stage.
        drops = np.split(np.linspace(0, drop_path, sum(blocks)), np.cumsum(blocks)[:-1])
        sizes = zip((3, *channels[:3]), channels, drops, HEADS, SR_RATIOS, strict=True)
        self.stages = nn.ModuleList(
            Stage(before, after, drops.tolist(), heads=heads, sr_ratio=sr_ratio)
            for before, after, drops, heads, sr_ratio in sizes
        )
        initialise(self)

    def forward(self, images: Tensor) -> list[Tensor]:  # [B, 3, H, W]
        return run_stages(self.stages, images)


class Stage(nn.Module):
    """Stage [B, in, ., .] -> [B, out, h, w]: overlap patch embedding (stride 4 on images, else 2), then transformer blocks."""

    def __init__(self, in_channels: int, out_channels: int, drops: list[float], *, heads: int, sr_ratio: int) -> None:
        """`drops`: drop path probability per block; `heads`, `sr_ratio`: of the attention."""
        super().__init__()
        # Patches overlap: 7x7 windows every 4 pixels on images, 3x3 windows every 2 on maps.
        size, stride = (7, 4) if in_channels == 3 else (3, 2)
        # overlap patch embedding: projection and norm
        self.embed = nn.Conv2d(in_channels, out_channels, size, stride, size // 2)
        self.embed_norm = nn.LayerNorm(out_channels)
        self.blocks = nn.ModuleList(Block(out_channels, heads, sr_ratio, drop) for drop in drops)
        self.norm = nn.LayerNorm(out_channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        h, w = x.shape[2:]
        x = self.embed_norm(to_tokens(x))  # [B, N, C]
        for block in self.blocks:
            x = block(x, h, w)
        return to_map(self.norm(x), h, w)


class Block(nn.Module):
    """Pre-norm transformer block [B, N, C] -> [B, N, C]: attention and Mix-FFN."""

    def __init__(self, channels: int, heads: int, sr_ratio: int, drop_path: float) -> None:
        super().__init__()
        # Epsilon 1e-6 in blocks, torch's default in the embeddings, as in PaddleSeg.
        self.norm1 = nn.LayerNorm(channels, eps=1e-6)
        self.attention = Attention(channels, heads, sr_ratio)
        self.norm2 = nn.LayerNorm(channels, eps=1e-6)
        self.mlp = MixFFN(channels, 4 * channels)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, h: int, w: int) -> Tensor:
        x = x + self.drop_path(self.attention(self.norm1(x), h, w))
        mixed: Tensor = x + self.drop_path(self.mlp(self.norm2(x), h, w))
        return mixed


class Attention(nn.Module):
    """Efficient self-attention [B, N, C] -> [B, N, C]: keys and values from the map reduced by `sr_ratio` per side."""

    def __init__(self, channels: int, heads: int, sr_ratio: int) -> None:
        super().__init__()
        self.heads = heads
        # qkv projections (q and kv in the paper's code), output projection, spatial reduction (sr)
        self.query = nn.Linear(channels, channels)
        self.key_value = nn.Linear(channels, 2 * channels)
        self.out = nn.Linear(channels, channels)
        self.reduce: nn.Conv2d | None = None
        if sr_ratio > 1:
            self.reduce = nn.Conv2d(channels, channels, sr_ratio, sr_ratio)
            self.reduced_norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor, h: int, w: int) -> Tensor:
        query = self.query(x)
        if self.reduce is not None:
            # Spatial reduction: attention costs N * N' with N' = N / sr_ratio ** 2.
            x = self.reduced_norm(to_tokens(self.reduce(to_map(x, h, w))))  # [B, N', C]
        # [B, N, C] -> [B, heads, N, C / heads]
        key, value = self.key_value(x).chunk(2, dim=2)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (query, key, value))
        context = F.scaled_dot_product_attention(query, key, value)  # [B, heads, N, C / heads]
        attended: Tensor = self.out(context.transpose(1, 2).flatten(2))
        return attended


class MixFFN(nn.Module):
    """Mix-FFN [B, N, C] -> [B, N, C]: fc1, a 3x3 depthwise convolution that provides position information, GELU, fc2."""

    def __init__(self, channels: int, inner_channels: int) -> None:
        super().__init__()
        self.widen = nn.Linear(channels, inner_channels)  # fc1
        self.mix = DepthwiseConv2d(inner_channels, inner_channels, 3, padding=1, groups=inner_channels)
        self.narrow = nn.Linear(inner_channels, channels)  # fc2

    def forward(self, x: Tensor, h: int, w: int) -> Tensor:
        # The 3x3 convolution replaces a position embedding, so inputs may have any size.
        x = to_tokens(self.mix(to_map(self.widen(x), h, w)))
        narrowed: Tensor = self.narrow(F.gelu(x))
        return narrowed


def to_tokens(x: Tensor) -> Tensor:  # [B, C, h, w] -> [B, N, C]
    return x.flatten(2).transpose(1, 2)


def to_map(x: Tensor, h: int, w: int) -> Tensor:  # [B, N, C] -> [B, C, h, w]
    return x.transpose(1, 2).reshape(x.shape[0], -1, h, w)  # shape[0], not len(x), which would fix the batch size of an export


def initialise(backbone: MixViT) -> None:
    """Initialise linear layers (normal of deviation 0.02, truncated at two) and convolutions (He, fan-out per group)."""
    for module in backbone.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d):
            # By fan-out per group, unlike torch's own initialisation, which counts all groups.
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
            assert module.bias is not None
            nn.init.zeros_(module.bias)


def mit_b0(strides: Sequence[Stride], *, drop_path: float = 0.1) -> Backbone:
    """MiT-B0. `drop_path`: probability of skipping the last block in training; it falls linearly to 0 at the first."""
    return MixViT((32, 64, 160, 256), (2, 2, 2, 2), drop_path=drop_path)


def mit_b1(strides: Sequence[Stride], *, drop_path: float = 0.1) -> Backbone:
    """MiT-B1. `drop_path`: probability of skipping the last block in training; it falls linearly to 0 at the first."""
    return MixViT((64, 128, 320, 512), (2, 2, 2, 2), drop_path=drop_path)


def mit_b2(strides: Sequence[Stride], *, drop_path: float = 0.1) -> Backbone:
    """MiT-B2. `drop_path`: probability of skipping the last block in training; it falls linearly to 0 at the first."""
    return MixViT((64, 128, 320, 512), (3, 4, 6, 3), drop_path=drop_path)


def mit_b3(strides: Sequence[Stride], *, drop_path: float = 0.1) -> Backbone:
    """MiT-B3. `drop_path`: probability of skipping the last block in training; it falls linearly to 0 at the first."""
    return MixViT((64, 128, 320, 512), (3, 4, 18, 3), drop_path=drop_path)


def mit_b4(strides: Sequence[Stride], *, drop_path: float = 0.1) -> Backbone:
    """MiT-B4. `drop_path`: probability of skipping the last block in training; it falls linearly to 0 at the first."""
    return MixViT((64, 128, 320, 512), (3, 8, 27, 3), drop_path=drop_path)


def mit_b5(strides: Sequence[Stride], *, drop_path: float = 0.1) -> Backbone:
    """MiT-B5. `drop_path`: probability of skipping the last block in training; it falls linearly to 0 at the first."""
    return MixViT((64, 128, 320, 512), (3, 6, 40, 3), drop_path=drop_path)
