"""MobileNetV3 for text lines: stride 32 in height and 4 in width.

Howard et al., Searching for MobileNetV3, https://arxiv.org/abs/1905.02244. Strides, the pooling at the end and the slope of the
hard sigmoid as in PaddleOCR. Shapes: B batch, C channels.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.backbones.mobilenet_v3 import LARGE, Block, InvertedResidual, MobileNetV3
from phalanx.nn.layers import ConvBNHardswish, Stride, initialise_as_paddle, scale_channels

Size = Literal['large', 'small']

LOWER = (2, 1)  # the stride that halves the height
BLOCKS: dict[Size, tuple[Block, ...]] = {
    'large': tuple(  # the published blocks with stride (2, 1) for 2, but stride 1 where they have 80 channels
        block._replace(stride=1 if block.stride == 1 or block.channels == 80 else LOWER) for block in chain(*LARGE)
    ),
    'small': (
        Block(3, 16, 16, True, 'relu'),
        Block(3, 72, 24, False, 'relu', LOWER),
        Block(3, 88, 24, False, 'relu'),
        Block(5, 96, 40, True, 'hardswish', LOWER),
        Block(5, 240, 40, True, 'hardswish'),
        Block(5, 240, 40, True, 'hardswish'),
        Block(5, 120, 48, True, 'hardswish'),
        Block(5, 144, 48, True, 'hardswish'),
        Block(5, 288, 96, True, 'hardswish', LOWER),
        Block(5, 576, 96, True, 'hardswish'),
        Block(5, 576, 96, True, 'hardswish'),
    ),
}
LAST = {'large': 960, 'small': 576}


class LineMobileNetV3(nn.Module):
    """images [B, 3, H, W] -> one map of stride 32 in height and 4 in width, with `channels`."""

    strides = ((32, 4),)

    def __init__(self, size: Size, *, scale: float, squeeze: bool = True) -> None:
        """`scale`: multiplies the published channels. `squeeze: false` leaves out squeeze-and-excitation."""
        super().__init__()
        channels = scale_channels(16, scale)
        self.stem = ConvBNHardswish(3, channels, 3, stride=2)
        blocks = []
        for number, block in enumerate(BLOCKS[size]):
            # As published, the first block of the small network has no shortcut: its stride is written (1, 1), not 1.
            shortcut = not (size == 'small' and number == 0)
            blocks.append(InvertedResidual(channels, block, scale, squeeze=squeeze, shortcut=shortcut))
            channels = scale_channels(block.channels, scale)
        self.blocks = nn.Sequential(*blocks)
        last = scale_channels(LAST[size], scale)
        self.channels = (last,)
        self.last = ConvBNHardswish(channels, last, 1)
        initialise_as_paddle(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        # Pooling at the end: stride 16 to 32 in height, 2 to 4 in width.
        return [F.max_pool2d(self.last(self.blocks(self.stem(images))), 2)]


def mobilenet_v3(strides: Sequence[Stride], *, size: Size = 'large', scale: float = 0.5, squeeze: bool = True) -> Backbone:
    """MobileNetV3; for networks that read text lines, the variant of stride 32 in height and 4 in width.

    `scale`: multiplies the published channels. `squeeze: false` leaves out squeeze-and-excitation. Raises ValueError for size
    `small` where it is not for text lines.
    """
    if isinstance(strides[-1], tuple):
        return LineMobileNetV3(size, scale=scale, squeeze=squeeze)
    if size == 'small':
        raise ValueError('mobilenet_v3 has size small only for text lines; set size: large and a smaller scale')
    return MobileNetV3(scale=scale, squeeze=squeeze)
