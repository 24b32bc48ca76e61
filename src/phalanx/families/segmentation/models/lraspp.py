"""LR-ASPP: a coarse map with attention from large-window pooling, and the logits of a finer map added.

Howard et al., Searching for MobileNetV3, https://arxiv.org/abs/1905.02244, section 6.4. As in PaddleSeg 0.8, the
coarse map has stride 32. Shapes: B batch, C channels, K classes.
"""

from functools import partial
from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.mobilenet_v3 import mobilenet_v3_halved
from phalanx.nn.layers import ConvBNReLU, initialise_convs, is_exporting, resize, upsample_logits

STRIDES = (8, 32)  # of the fine and the coarse map


class LRASPP(nn.Module):
    """images [B, 3, H, W] -> logits [B, K, H, W]."""

    num_outputs = 1

    def __init__(self, num_classes: int, backbone: Backbone, *, window: int | None, align_corners: bool) -> None:
        """`window`, `align_corners`: as in lraspp."""
        super().__init__()
        self.backbone = backbone
        self.maps = select_maps(backbone, STRIDES, 'lraspp')
        fine_channels, coarse_channels = (backbone.channels[place] for place in self.maps)
        self.cells = None if window is None else (window - 1) // STRIDES[1] + 1  # window side in cells of the coarse map
        self.align_corners = align_corners
        self.mix = ConvBNReLU(coarse_channels, 128, 1)
        # weigh: the attention branch, from pooled means to a gate per channel
        self.weigh = nn.Conv2d(coarse_channels, 128, 1, bias=False)
        self.classify_coarse = nn.Conv2d(128, num_classes, 1, bias=False)
        self.classify_fine = nn.Conv2d(fine_channels, num_classes, 1, bias=False)
        for part in (self.mix, self.weigh, self.classify_coarse, self.classify_fine):
            initialise_convs(part)

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = self.backbone(images)
        fine, coarse = (maps[place] for place in self.maps)  # [B, C, H/8, W/8], [B, C, H/32, W/32]
        # Attention branch: pooled means, 1x1 convolution, hard sigmoid.
        gates = F.hardsigmoid(self.weigh(self.pool(coarse)))  # [B, 128, ., .], per channel and window
        mixed = self.mix(coarse) * resize(gates, coarse, align_corners=self.align_corners)
        # Logits of both maps are added at the size of the fine one.
        scores = resize(self.classify_coarse(mixed), fine, align_corners=self.align_corners) + self.classify_fine(fine)
        return [upsample_logits(scores, images, align_corners=self.align_corners)]

    def pool(self, coarse: Tensor) -> Tensor:
        """Return the means of the coarse map [B, C, h, w] in its windows, or of all of it."""
        if self.cells is None:
            return coarse.mean((2, 3), keepdim=True)
        # An export has windows of one size; otherwise images smaller than a window have a smaller one.
        sides = [self.cells] * 2 if is_exporting() else [min(self.cells, side) for side in coarse.shape[-2:]]
        return F.avg_pool2d(coarse, sides, stride=(4, 5))


def lraspp(
    num_classes: int,
    *,
    backbone: Annotated[partial[Backbone], BACKBONES] = partial(mobilenet_v3_halved),
    window: int | None = None,
    align_corners: bool = False,
) -> LRASPP:
    """LR-ASPP, published on MobileNetV3-large, for phones and CPUs.

    `window`: side of the attention's pooling window in pixels of the image; default the whole image. `align_corners`: upsample
    with aligned corners, which fits inputs of 769 x 769. Raises ValueError for a backbone without maps of strides 8 and 32.
    """
    return LRASPP(num_classes, backbone(STRIDES), window=window, align_corners=align_corners)
