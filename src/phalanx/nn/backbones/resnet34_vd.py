"""ResNet34-vd for text lines: stride 32 in height and 4 in width.

He et al., Bag of Tricks for Image Classification with Convolutional Neural Networks, https://arxiv.org/abs/1812.01187. Strides
and the pooling at the end as in PaddleOCR. Shapes: B batch, C channels.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.backbones.resnet_vd import Residual as ResNetBlock
from phalanx.nn.backbones.resnet_vd import ResNetVD
from phalanx.nn.layers import ConvBN, ConvBNReLU, Stride, initialise_as_paddle


class ResNet34vd(nn.Module):
    """images [B, 3, H, W] -> one map of stride 32 in height and 4 in width, with 512 channels."""

    channels = (512,)
    strides = ((32, 4),)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            ConvBNReLU(3, 32, 3), ConvBNReLU(32, 32, 3), ConvBNReLU(32, 64, 3), nn.MaxPool2d(3, stride=2, padding=1)
        )
        # Stages halve the height only: a line keeps its horizontal resolution.
        stages, before = [], 64
        for count, channels in zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True):
            first = Residual(before, channels, lower=channels != 64)
            stages.append(nn.Sequential(first, *(Residual(channels, channels) for _ in range(count - 1))))
            before = channels
        # As published, the very first block has a convolution in its shortcut, although the shape stays.
        stages[0][0].shortcut = ConvBN(64, 64, 1)
        self.stages = nn.Sequential(*stages)
        initialise_as_paddle(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        return [F.max_pool2d(self.stages(self.stem(images)), 2)]


def resnet34_vd(strides: Sequence[Stride]) -> Backbone:
    """ResNet34-vd: for text lines as in PaddleOCR's CRNN, for other images with maps of strides 4, 8, 16 and 32."""
    if all(isinstance(stride, int) for stride in strides):
        return ResNetVD((3, 4, 6, 3), block=ResNetBlock, output_stride=32)
    return ResNet34vd()


class Residual(nn.Module):
    """Residual block x [B, in, H, W] -> [B, out, H or H/2, W]; with `lower`, the shortcut has average pooling."""

    def __init__(self, in_channels: int, out_channels: int, *, lower: bool = False) -> None:
        super().__init__()
        stride: Stride = (2, 1) if lower else 1
        self.first = ConvBNReLU(in_channels, out_channels, 3, stride=stride)
        self.second = ConvBN(out_channels, out_channels, 3)
        self.shortcut: nn.Module = nn.Identity()
        if lower:
            halve = nn.AvgPool2d((2, 1), ceil_mode=True)
            self.shortcut = nn.Sequential(halve, ConvBN(in_channels, out_channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.second(self.first(x)))
