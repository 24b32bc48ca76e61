"""DeepLabv3+: atrous spatial pyramid pooling (ASPP) on a coarse map, and a decoder that adds a fine map (low-level features).

Chen et al., Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation, https://arxiv.org/abs/1802.02611.
Layer order and channels as in PaddleSeg. Shapes: B batch, C channels, K classes.
"""

from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.resnet_vd import resnet50_vd, resnet101_vd
from phalanx.nn.backbones.xception import xception65
from phalanx.nn.layers import ConvBN, ConvBNReLU, initialise_convs, resize, upsample_logits, use_group_norms
from phalanx.nn.stochastic import Dropout

WITH_STRIDE_8 = (resnet50_vd, resnet101_vd)  # published by PaddleSeg with output stride 8, the others with 16


class DeepLabV3Plus(nn.Module):
    """images [B, 3, H, W] -> logits [B, K, H, W]."""

    num_outputs = 1

    def __init__(
        self,
        num_classes: int,
        backbone: Backbone,
        *,
        output_stride: int,
        dilations: tuple[int, ...],
        pyramid: bool = True,
        decoder: bool = True,
        dropout: float,
        align_corners: bool = False,
    ) -> None:
        """The options are those of deeplabv3p."""
        super().__init__()
        self.backbone, self.align_corners = backbone, align_corners
        self.maps = select_maps(backbone, (4, output_stride), 'deeplabv3p')
        fine_channels, channels = (backbone.channels[place] for place in self.maps)
        self.pyramid: nn.Module = ASPP(channels, 256, dilations) if pyramid else nn.Identity()
        self.dropout: nn.Module = Dropout(dropout) if pyramid else nn.Identity()
        channels = 256 if pyramid else channels
        self.fine = self.decoder = None  # low-level projection and fusion convolutions
        if decoder:
            self.fine = ConvBNReLU(fine_channels, 48, 1, bias=True)
            self.decoder = nn.Sequential(
                build_separable_conv(channels + 48, 256, dilation=1), build_separable_conv(256, 256, dilation=1)
            )
            channels = 256
        self.classify = nn.Conv2d(channels, num_classes, 1)
        # The backbone has drawn its own initial weights.
        for part in (self.pyramid, self.fine, self.decoder, self.classify):
            if part is not None:
                initialise_convs(part)

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = self.backbone(images)
        fine, coarse = (maps[place] for place in self.maps)
        x = self.dropout(self.pyramid(coarse))  # [B, C, h, w]
        if self.fine is not None and self.decoder is not None:
            # The decoder sharpens the coarse map with the low-level features of stride 4.
            fine = self.fine(fine)  # [B, 48, H/4, W/4]
            x = self.decoder(torch.cat([resize(x, fine, align_corners=self.align_corners), fine], dim=1))
        return [upsample_logits(self.classify(x), images, align_corners=self.align_corners)]


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: [B, in, h, w] -> [B, out, h, w].

    Parallel branches - a 1x1 convolution, one atrous separable convolution per dilation, and image pooling - are concatenated
    and projected.
    """

    def __init__(self, in_channels: int, out_channels: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.windows = nn.ModuleList(
            [
                ConvBNReLU(in_channels, out_channels, 1, bias=True),
                *(build_separable_conv(in_channels, out_channels, dilation) for dilation in dilations),
            ]
        )
        # image pooling, and the projection of the concatenated branches
        self.mean = ConvBNReLU(in_channels, out_channels, 1)
        self.mix = ConvBNReLU((len(dilations) + 2) * out_channels, out_channels, 1, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        # Image pooling has one value per channel, repeated at all positions.
        branches = [window(x) for window in self.windows]
        mean = self.mean(x.mean((2, 3), keepdim=True)).expand_as(branches[0])
        projected: Tensor = self.mix(torch.cat([*branches, mean], dim=1))
        return projected


def build_separable_conv(in_channels: int, out_channels: int, dilation: int) -> nn.Sequential:
    """Return a dilated depthwise convolution and a pointwise one with ReLU."""
    depthwise = ConvBN(in_channels, in_channels, 3, dilation=dilation, groups=in_channels, bias=True)
    return nn.Sequential(depthwise, ConvBNReLU(in_channels, out_channels, 1, bias=True))


def deeplabv3p(
    num_classes: int,
    *,
    backbone: Annotated[partial[Backbone], BACKBONES] = partial(xception65),
    output_stride: Literal[8, 16, 32] | None = None,
    dilations: tuple[int, ...] | None = None,
    pyramid: bool = True,
    decoder: bool = True,
    dropout: float = 0.1,
    align_corners: bool = False,
    norm_groups: int | None = None,
) -> DeepLabV3Plus:
    """DeepLabv3+, published on Xception-65, ResNet-vd and MobileNetV2.

    `output_stride`: of the coarsest map; default 16, and 8 on ResNet-vd, as published by PaddleSeg. `dilations`: of the ASPP;
    default those of the paper for the stride. `pyramid: false` leaves out the ASPP, `decoder: false` classifies the coarse map
    directly. `dropout`: probability after the ASPP. `align_corners`: upsample with aligned corners, which fits inputs of
    769 x 769. `norm_groups`: number of groups of group norms (Wu & He 2018) that replace batch norms, for small batches.
    Raises ValueError for a backbone without maps of stride 4 and `output_stride`.
    """
    stride = output_stride or (8 if backbone.func in WITH_STRIDE_8 else 16)
    rate = 96 // stride  # 6 at 1/16 of the size and 12 at 1/8, as in the paper
    model = DeepLabV3Plus(
        num_classes,
        backbone((4, stride)),
        output_stride=stride,
        dilations=dilations or (rate, 2 * rate, 3 * rate),
        pyramid=pyramid,
        decoder=decoder,
        dropout=dropout,
        align_corners=align_corners,
    )
    if norm_groups:
        use_group_norms(model, norm_groups)
    return model
