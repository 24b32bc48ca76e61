"""MobileNetV1 as PP-OCRv3 changed it: it halves the height five times and the width three times.

Howard et al., MobileNets, https://arxiv.org/abs/1704.04861; Cui et al., PP-LCNet, https://arxiv.org/abs/2109.15099 (activation,
5 x 5 filters and squeeze-and-excitation at the end). Strides and pooling as in PaddleOCR. Shapes: B batch, C channels.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.recognition.models.blocks import ConvBN, SqueezeExcite, Stride, initialise_as_paddle


class MobileNetV1Enhance(nn.Module):
    """images [B, 3, H, W], H from 33 to 63 -> features [B, C, 1, W/8], `channels` deep."""

    def __init__(self, *, scale: float) -> None:
        super().__init__()
        stem, *widths = (int(channels * scale) for channels in (32, 64, 128, 256, 512, 1024))
        self.stem = ConvBN(3, stem, 3, stride=2, activation=F.hardswish)
        self.blocks = nn.Sequential(
            Separable(stem, widths[0], 3),
            Separable(widths[0], widths[1], 3),
            Separable(widths[1], widths[1], 3),
            Separable(widths[1], widths[2], 3, stride=(2, 1)),
            Separable(widths[2], widths[2], 3),
            Separable(widths[2], widths[3], 3, stride=(2, 1)),
            *(Separable(widths[3], widths[3], 5) for _ in range(5)),
            Separable(widths[3], widths[4], 5, stride=(2, 1), squeeze=True),
            Separable(widths[4], widths[4], 5, stride=(1, 2), squeeze=True),
        )
        self.channels = widths[4]
        initialise_as_paddle(self)  # so PaddleOCR draws squeeze-and-excitation; the other convolutions by He's rule:
        for module in self.modules():
            if isinstance(module, ConvBN):
                nn.init.kaiming_normal_(module.conv.weight, nonlinearity='relu')

    def forward(self, images: Tensor) -> Tensor:
        return F.avg_pool2d(self.blocks(self.stem(images)), 2)


class Separable(nn.Module):
    """x [B, in, H, W] -> [B, out, ., .]: filtered channel by channel, then mixed."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, stride: Stride = 1, squeeze: bool = False
    ) -> None:
        super().__init__()
        self.filter = ConvBN(in_channels, in_channels, kernel_size, stride=stride, groups=in_channels, activation=F.hardswish)
        self.squeeze = SqueezeExcite(in_channels, slope=1 / 6) if squeeze else nn.Identity()
        self.mix = ConvBN(in_channels, out_channels, 1, activation=F.hardswish)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.mix(self.squeeze(self.filter(x)))
        return mixed
