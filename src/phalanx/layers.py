"""Layers that several networks are made of. Shapes: B batch, C channels."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.norms import BatchNorm2d


class ConvBN(nn.Module):
    """A convolution that keeps the size of the map (halves it, rounding up, with stride 2) and the norm of its result.

    The norm takes any `bias` of the convolution away again; it is there for networks whose published weights have one.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, stride: int = 1, groups: int = 1, bias: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, groups=groups, bias=bias)
        self.norm = BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        normalised: Tensor = self.norm(self.conv(x))
        return normalised


class ConvBNReLU(ConvBN):
    """The same, rectified."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        return F.relu(super().forward(x), inplace=True)


def resize(x: Tensor, like: Tensor) -> Tensor:
    """`x` [B, C, h, w] brought to the height and width of `like`, bilinearly, pixels being areas and not points."""
    size = like.shape[-2:]
    return x if x.shape[-2:] == size else F.interpolate(x, size, mode='bilinear', align_corners=False)


def initialise_convs(model: nn.Module) -> None:
    """Draws every convolution of `model` for training from scratch: He normal by fan-in, biases zero.

    Fan-in is what PaddleSeg's heads start from. Fan-out would be wrong in two places: torch counts it over all groups, which
    makes depthwise kernels too small by the square root of their channels, and a classifier has few outputs, which makes its
    first logits large. PaddleSeg draws STDC with a deviation of 0.001; in a small trial from scratch that learned more slowly.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, mode='fan_in', nonlinearity='relu')
            if module.bias is not None:
                nn.init.zeros_(module.bias)
