"""Necks of PP-OCRv3 to v6: SVTR's self-attention along the line, but for v6 tiny.

Du et al., SVTR: Scene Text Recognition with a Single Visual Model, https://arxiv.org/abs/2205.00159, of which PaddleOCR takes
two global mixing blocks. Shapes: B batch, C channels, T time steps along the line, D channels of the blocks.
"""

import torch
from torch import Tensor, nn

from phalanx.families.recognition.models.blocks import to_sequence
from phalanx.nn.layers import ConvBNHardswish, ConvBNSiLU
from phalanx.nn.stochastic import Dropout


class SVTRNeck(nn.Module):
    """SVTR neck (EncoderWithSVTR in PaddleOCR): features [B, C, 1, T] -> a sequence [B, T, out]."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        depth: int,
        hidden_size: int,
        dropout: float,
        kernel_size: int | tuple[int, int] = 3,
    ) -> None:
        super().__init__()
        narrow = in_channels // 8
        self.narrow = ConvBNSiLU(in_channels, narrow, kernel_size)  # conv1
        self.enter = ConvBNSiLU(narrow, hidden_size, 1)  # conv2
        self.blocks = nn.Sequential(*(MixingBlock(hidden_size, dropout=dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(hidden_size, eps=1e-6)
        self.leave = ConvBNSiLU(hidden_size, in_channels, 1)  # conv3
        self.join = ConvBNSiLU(2 * in_channels, narrow, kernel_size)  # conv4
        self.out = ConvBNSiLU(narrow, out_channels, 1)  # conv1x1
        initialise_svtr_neck(self)

    def forward(self, features: Tensor) -> Tensor:
        """Mix along the line in few channels, then join the result with the features."""
        # Contiguous after each transposition: otherwise torch.export cannot order the strides of a sum for every width.
        sequence = to_sequence(self.enter(self.narrow(features))).contiguous()  # [B, T, D]
        sequence = self.norm(self.blocks(sequence))
        mixed = self.leave(sequence.transpose(1, 2).contiguous().unsqueeze(2))  # [B, C, 1, T]
        return to_sequence(self.out(self.join(torch.cat([features, mixed], dim=1))))


def initialise_svtr_neck(neck: nn.Module) -> None:
    """Initialise as PaddleOCR does: He uniform for convolutions, a truncated normal distribution for linear layers."""
    for module in neck.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_uniform_(module.weight, nonlinearity='relu')
        elif isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
            nn.init.zeros_(module.bias)


class LightSVTRNeck(nn.Module):
    """Neck of PP-OCRv6, with D channels throughout: features [B, C, 1, T] -> a sequence [B, T, D].

    Layer order as in PaddlePaddle's published files and the PyTorch port in the transformers library.
    """

    def __init__(self, in_channels: int, hidden_size: int, *, depth: int, dropout: float, mlp_ratio: int = 2) -> None:
        super().__init__()
        self.skip = ConvBNSiLU(in_channels, hidden_size, 1)
        self.enter = ConvBNSiLU(in_channels, hidden_size, 1)
        self.near = ConvBNSiLU(hidden_size, hidden_size, (1, 7), groups=hidden_size)  # local mixing
        self.blocks = nn.Sequential(*(MixingBlock(hidden_size, dropout=dropout, mlp_ratio=mlp_ratio) for _ in range(depth)))
        self.norm = nn.LayerNorm(hidden_size, eps=1e-6)
        initialise_svtr_neck(self)

    def forward(self, features: Tensor) -> Tensor:
        """Mix locally, then globally, and add the shortcut."""
        x = self.enter(features)
        sequence = to_sequence(x + self.near(x)).contiguous()  # for torch.export, as in SVTRNeck
        mixed: Tensor = self.norm(self.blocks(sequence)) + to_sequence(self.skip(features))
        return mixed


class ConvNeck(nn.Module):
    """Neck of PP-OCRv6 tiny: features [B, C, 1, T] -> a sequence [B, T, D], by convolutions and a linear layer.

    PaddleOCR counts these layers to its CTC head (`use_guide`, `mid_channels`).
    """

    def __init__(self, in_channels: int, hidden_size: int) -> None:
        super().__init__()
        self.near = ConvBNHardswish(in_channels, in_channels, (1, 5), groups=in_channels)
        self.mix = ConvBNHardswish(in_channels, in_channels, 1)
        self.narrow = nn.Linear(in_channels, hidden_size)

    def forward(self, features: Tensor) -> Tensor:
        narrowed: Tensor = self.narrow(to_sequence(self.mix(self.near(features))))
        return narrowed


class MixingBlock(nn.Module):
    """Global mixing block (pre-norm): x [B, T, D] -> the same, by self-attention and an MLP."""

    def __init__(self, size: int, *, dropout: float, mlp_ratio: int = 2) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size)
        self.mixer = Attention(size, heads=8, dropout=dropout)
        self.norm2 = nn.LayerNorm(size)
        hidden = mlp_ratio * size
        self.mlp = nn.Sequential(  # fc1, SiLU, fc2
            nn.Linear(size, hidden), nn.SiLU(), Dropout(dropout), nn.Linear(hidden, size), Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply both residual branches."""
        # Pre-norm, unlike the decoders.
        x = x + self.mixer(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Attention(nn.Module):
    """Multi-head self-attention, x [B, T, D] -> the same."""

    def __init__(self, size: int, *, heads: int, dropout: float) -> None:
        super().__init__()
        if size % heads:
            raise ValueError(f'the hidden size of the SVTR neck must be a multiple of its {heads} heads, got {size}')
        self.heads = heads
        self.qkv = nn.Linear(size, 3 * size)
        self.attn_drop = Dropout(dropout)
        self.out = nn.Sequential(nn.Linear(size, size), Dropout(dropout))  # proj and its dropout

    def forward(self, x: Tensor) -> Tensor:
        """Attend from every time step to all."""
        B, T, D = x.shape
        query, key, value = self.qkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)  # [B, heads, T, .]
        weights = torch.softmax((query * (D // self.heads) ** -0.5) @ key.transpose(2, 3), dim=3)  # [B, heads, T, T]
        context = (self.attn_drop(weights) @ value).transpose(1, 2).reshape(B, T, D)
        out: Tensor = self.out(context)
        return out
