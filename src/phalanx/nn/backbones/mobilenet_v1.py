"""MobileNetV1Enhance: MobileNetV1 for text lines, as modified by PP-OCRv3.

Howard et al., MobileNets, https://arxiv.org/abs/1704.04861; Cui et al., PP-LCNet, https://arxiv.org/abs/2109.15099 (activation,
5 x 5 filters and squeeze-and-excitation at the end). Strides and pooling as in PaddleOCR: stride 32 in height and 8 in
width. Shapes: B batch, C channels.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.layers import ConvBN, ConvBNHardswish, DepthwiseSeparable, Stride, initialise_as_paddle


class MobileNetV1Enhance(nn.Module):
    """images [B, 3, H, W] -> one map of stride 32 in height and 8 in width, with `channels`."""

    strides = ((32, 8),)

    def __init__(self, *, scale: float) -> None:
        super().__init__()
        # Channels are cut off, not rounded to multiples of 8, as published.
        stem, *widths = (int(channels * scale) for channels in (32, 64, 128, 256, 512, 1024))
        self.stem = ConvBNHardswish(3, stem, 3, stride=2)
        self.blocks = nn.Sequential(
            DepthwiseSeparable(stem, widths[0], 3),
            DepthwiseSeparable(widths[0], widths[1], 3),
            DepthwiseSeparable(widths[1], widths[1], 3),
            DepthwiseSeparable(widths[1], widths[2], 3, stride=(2, 1)),
            DepthwiseSeparable(widths[2], widths[2], 3),
            DepthwiseSeparable(widths[2], widths[3], 3, stride=(2, 1)),
            *(DepthwiseSeparable(widths[3], widths[3], 5) for _ in range(5)),
            DepthwiseSeparable(widths[3], widths[4], 5, stride=(2, 1), squeeze=True),
            DepthwiseSeparable(widths[4], widths[4], 5, stride=(1, 2), squeeze=True),
        )
        self.channels = (widths[4],)
        # As in PaddleOCR: Paddle's default in squeeze-and-excitation, He normal in the other convolutions.
        initialise_as_paddle(self)
        for module in self.modules():
            if isinstance(module, ConvBN):
                nn.init.kaiming_normal_(module.conv.weight, nonlinearity='relu')

    def forward(self, images: Tensor) -> list[Tensor]:
        # Pooling at the end: stride 16 to 32 in height, 4 to 8 in width.
        return [F.avg_pool2d(self.blocks(self.stem(images)), 2)]


def mobilenet_v1_enhance(strides: Sequence[Stride], *, scale: float = 0.5) -> Backbone:
    """MobileNetV1 for text lines, as modified by PP-OCRv3. `scale`: multiplies the published channels."""
    return MobileNetV1Enhance(scale=scale)
