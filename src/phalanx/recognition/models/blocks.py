"""Layers that several recognition networks are made of. Shapes: B batch, C channels, T places along the line."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.norms import BatchNorm2d

Activation = Callable[[Tensor], Tensor]
Stride = int | tuple[int, int]  # (down, right): text lines are halved in height and keep their width


class ConvBN(nn.Module):
    """A convolution that keeps the size of the map but for its stride, the norm of its result, and an activation."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: Stride = 1,
        groups: int = 1,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, groups=groups, bias=False)
        self.norm = BatchNorm2d(out_channels)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        x = self.norm(self.conv(x))
        return x if self.activation is None else self.activation(x)


class SqueezeExcite(nn.Module):
    """x [B, C, H, W] -> the same, each channel scaled by a share in [0, 1] that follows from the means of all channels.

    `slope` is that of the hard sigmoid: PaddleOCR takes 0.2 in MobileNetV3 and 1/6, torch's own, in MobileNetV1.
    """

    def __init__(self, channels: int, *, slope: float) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, channels // 4, 1)
        self.excite = nn.Conv2d(channels // 4, channels, 1)
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)  # [B, C, 1, 1]
        share = F.hardsigmoid(self.excite(F.relu(self.squeeze(means))) * (6 * self.slope))
        return x * share


def along_the_line(features: Tensor) -> Tensor:  # [B, C, 1, T] -> [B, T, C]
    """A map of height 1 as a sequence. Raises ValueError for another height: the images do not fit the network."""
    if features.shape[2] != 1:
        raise ValueError(
            f'the images leave the backbone {features.shape[2]} rows high, it must be 1: give them the height of the network'
        )
    return features.squeeze(2).transpose(1, 2)


def initialise_as_paddle(model: nn.Module) -> None:
    """Draws convolutions and linear layers of `model` as Paddle does by itself; biases are zero.

    Convolutions: normal, of variance 2 / (kernel area x input channels), all channels counted whatever the groups. Linear
    layers: Glorot uniform.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=math.sqrt(2 / (math.prod(module.kernel_size) * module.in_channels)))
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
