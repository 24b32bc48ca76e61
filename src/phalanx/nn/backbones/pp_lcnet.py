"""PP-LCNet: depthwise separable convolutions with large kernels only where they cost little.

Cui et al., PP-LCNet: A Lightweight CPU Convolutional Neural Network, https://arxiv.org/abs/2109.15099. Layer order as in
PaddleOCR. The classification end of the paper's network is left out. Shapes: B batch, C channels.
"""

from typing import NamedTuple

from torch import Tensor, nn

from phalanx.nn.layers import ConvBNHardswish, DepthwiseSeparable, maps_of, scaled


class Block(NamedTuple):
    """A block of the paper's table, at scale 1."""

    kernel_size: int
    out_channels: int
    stride: int
    squeeze: bool = False  # squeeze-and-excitation between the two convolutions


STEM_CHANNELS = 16
STAGES = (  # the first at 1/2 of the size, then each at half of the one before
    (Block(3, 32, 1),),
    (Block(3, 64, 2), Block(3, 64, 1)),
    (Block(3, 128, 2), Block(3, 128, 1)),
    (Block(3, 256, 2), *(Block(5, 256, 1),) * 5),
    (Block(5, 512, 2, squeeze=True), Block(5, 512, 1, squeeze=True)),
)


class PPLCNet(nn.Module):
    """images [B, 3, H, W] -> four maps, of 1/4, 1/8, 1/16 and 1/32 of the size (rounded up), `channels` deep."""

    def __init__(self, scale: float) -> None:
        """`scale`: how many channels there are, as a share of the paper's."""
        super().__init__()
        before = scaled(STEM_CHANNELS, scale)
        self.stem = ConvBNHardswish(3, before, 3, stride=2)
        self.stages = nn.ModuleList()
        for blocks in STAGES:
            stage = nn.Sequential()
            for block in blocks:
                after = scaled(block.out_channels, scale)
                stage.append(DepthwiseSeparable(before, after, block.kernel_size, stride=block.stride, squeeze=block.squeeze))
                before = after
            self.stages.append(stage)
        self.channels = tuple(scaled(blocks[-1].out_channels, scale) for blocks in STAGES[1:])

    def forward(self, images: Tensor) -> list[Tensor]:
        return maps_of(self.stages, self.stem(images))[1:]
