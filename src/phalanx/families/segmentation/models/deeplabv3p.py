"""DeepLabv3+: a coarse map seen through windows of several widths at once, and a decoder that takes up a fine map again.

Chen et al., Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation, https://arxiv.org/abs/1802.02611.
Layer order and channels as in PaddleSeg. Shapes: B batch, C channels, K classes.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from phalanx.nn.backbones.mobilenet_v2 import MobileNetV2
from phalanx.nn.backbones.resnet_vd import ResNetVD, resnet50_vd, resnet101_vd
from phalanx.nn.backbones.xception import Xception
from phalanx.nn.layers import ConvBN, ConvBNReLU, enlarged_logits, initialise_convs, resize, use_group_norms
from phalanx.nn.stochastic import Dropout

BACKBONES: dict[str, Callable[..., Xception | ResNetVD | MobileNetV2]] = {
    'xception65': Xception,
    'resnet50_vd': resnet50_vd,
    'resnet101_vd': resnet101_vd,
    'mobilenet_v2': MobileNetV2,
}
OUTPUT_STRIDES = {'xception65': 16, 'resnet50_vd': 8, 'resnet101_vd': 8, 'mobilenet_v2': 16}  # as PaddleSeg published them
PUBLISHED_DILATIONS = {16: (6, 12, 18), 8: (12, 24, 36)}  # by output stride


class DeepLabV3Plus(nn.Module):
    """images [B, 3, H, W] -> logits [B, K, H, W]."""

    num_outputs = 1

    def __init__(
        self,
        num_classes: int,
        backbone: Xception | ResNetVD | MobileNetV2,
        *,
        dilations: tuple[int, ...],
        pyramid: bool = True,
        decoder: bool = True,
        dropout: float,
        align_corners: bool = False,
    ) -> None:
        """The options are those of deeplabv3p."""
        super().__init__()
        self.backbone, self.align_corners = backbone, align_corners
        channels = backbone.channels[-1]
        self.pyramid: nn.Module = AtrousPyramid(channels, 256, dilations) if pyramid else nn.Identity()
        self.dropout: nn.Module = Dropout(dropout) if pyramid else nn.Identity()
        channels = 256 if pyramid else channels
        self.fine = self.decoder = None
        if decoder:
            self.fine = ConvBNReLU(backbone.channels[0], 48, 1, bias=True)
            self.decoder = nn.Sequential(separable(channels + 48, 256, dilation=1), separable(256, 256, dilation=1))
            channels = 256
        self.classify = nn.Conv2d(channels, num_classes, 1)
        for part in (self.pyramid, self.fine, self.decoder, self.classify):
            if part is not None:
                initialise_convs(part)

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = self.backbone(images)
        x = self.dropout(self.pyramid(maps[-1]))  # [B, C, h, w]
        if self.fine is not None and self.decoder is not None:
            fine = self.fine(maps[0])  # [B, 48, H/4, W/4]
            x = self.decoder(torch.cat([resize(x, fine, align_corners=self.align_corners), fine], dim=1))
        return [enlarged_logits(self.classify(x), images, align_corners=self.align_corners)]


class AtrousPyramid(nn.Module):
    """A map [B, in, h, w] -> [B, out, h, w]: each pixel, windows of growing width around it, and the mean of all, mixed."""

    def __init__(self, in_channels: int, out_channels: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.windows = nn.ModuleList(
            [
                ConvBNReLU(in_channels, out_channels, 1, bias=True),
                *(separable(in_channels, out_channels, dilation) for dilation in dilations),
            ]
        )
        self.mean = ConvBNReLU(in_channels, out_channels, 1)
        self.mix = ConvBNReLU((len(dilations) + 2) * out_channels, out_channels, 1, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        seen = [window(x) for window in self.windows]
        mean = self.mean(x.mean((2, 3), keepdim=True)).expand_as(seen[0])
        mixed: Tensor = self.mix(torch.cat([*seen, mean], dim=1))
        return mixed


def separable(in_channels: int, out_channels: int, dilation: int) -> nn.Sequential:
    """A depthwise convolution, dilated, and a pointwise one, rectified."""
    depthwise = ConvBN(in_channels, in_channels, 3, dilation=dilation, groups=in_channels, bias=True)
    return nn.Sequential(depthwise, ConvBNReLU(in_channels, out_channels, 1, bias=True))


def deeplabv3p(
    num_classes: int,
    *,
    backbone: Literal['xception65', 'resnet50_vd', 'resnet101_vd', 'mobilenet_v2'] = 'xception65',
    output_stride: Literal[8, 16] | None = None,
    dilations: tuple[int, ...] | None = None,
    pyramid: bool = True,
    decoder: bool = True,
    dropout: float = 0.1,
    align_corners: bool = False,
    norm_groups: int | None = None,
) -> DeepLabV3Plus:
    """DeepLabv3+ on Xception-65, ResNet-vd or MobileNetV2. Raises ValueError for an output stride that a backbone has not.

    The coarsest map is 1/`output_stride` of the size: without it 1/16, and 1/8 on ResNet-vd, as PaddleSeg published them.
    `dilations` of the windows on that map: without them those of the paper for the stride. Without `pyramid` there are no
    windows, without `decoder` the coarse map is classified as it is. `dropout`: the share of what the windows see that training
    hides. `align_corners`: maps are enlarged with corners in place, as fits 769 x 769. `norm_groups`: group norms of so many
    groups (Wu & He 2018) instead of batch norms, for steps of few samples.
    """
    stride = output_stride or OUTPUT_STRIDES[backbone]
    model = DeepLabV3Plus(
        num_classes,
        BACKBONES[backbone](output_stride=stride),
        dilations=dilations or PUBLISHED_DILATIONS[stride],
        pyramid=pyramid,
        decoder=decoder,
        dropout=dropout,
        align_corners=align_corners,
    )
    if norm_groups:
        use_group_norms(model, norm_groups)
    return model
