"""PP-LCNet: depthwise separable convolutions, with large kernels only in the late stages.

Cui et al., PP-LCNet: A Lightweight CPU Convolutional Neural Network, https://arxiv.org/abs/2109.15099. Layer order as in
PaddleOCR. The classification head is left out. Shapes: B batch, C channels.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.layers import ConvBN, ConvBNHardswish, DepthwiseSeparable, Stride, initialise_convs, run_stages, scale_channels


class Block(NamedTuple):
    """Parameters of a block of the published network, at scale 1."""

    kernel_size: int
    out_channels: int
    stride: Stride = 1
    squeeze: bool = False  # squeeze-and-excitation between the two convolutions


Stages = tuple[tuple[Block, ...], ...]

STEM_CHANNELS = 16
PAPER: Stages = (  # the first at stride 2, each further one halves the map
    (Block(3, 32),),
    (Block(3, 64, 2), Block(3, 64)),
    (Block(3, 128, 2), Block(3, 128)),
    (Block(3, 256, 2), *(Block(5, 256),) * 5),
    (Block(5, 512, 2, squeeze=True), Block(5, 512, squeeze=True)),
)


class PPLCNet(nn.Module):
    """images [B, 3, H, W] -> the maps of all stages but the first, from fine to coarse, with `channels`.

    Strides are 4, 8, 16 and 32 with the stages of the PAPER.
    """

    channels: tuple[int, ...]
    strides: tuple[Stride, ...]

    def __init__(
        self,
        scale: float,
        stages: Stages = PAPER,
        *,
        multiple: int = 8,
        stem: type[ConvBN] = ConvBNHardswish,
        conv: Callable[..., nn.Module] = ConvBNHardswish,
    ) -> None:
        """`scale`: multiplies the published channels, rounded to a `multiple`.

        `stem` and `conv` build the first convolution and those of the blocks.
        """
        super().__init__()
        # Stem of stride 2.
        before = scale_channels(STEM_CHANNELS, scale, multiple=multiple)
        self.stem = stem(3, before, 3, stride=2)
        self.stages = nn.ModuleList()
        channels, strides, height, width = [], list[Stride](), 2, 2  # height, width: the stride so far
        # One stage per map; the stride of a map is the product of those before it.
        for blocks in stages:
            stage = nn.Sequential()
            for kernel_size, out_channels, stride, squeeze in blocks:
                after = scale_channels(out_channels, scale, multiple=multiple)
                stage.append(DepthwiseSeparable(before, after, kernel_size, stride=stride, squeeze=squeeze, conv=conv))
                before = after
                down, right = (stride, stride) if isinstance(stride, int) else stride
                height, width = height * down, width * right
            self.stages.append(stage)
            channels.append(before)
            strides.append(height if height == width else (height, width))
        # The first stage has stride 2, too fine for the networks.
        self.channels, self.strides = tuple(channels[1:]), tuple(strides[1:])
        initialise_convs(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        return run_stages(self.stages, self.stem(images))[1:]


def pp_lcnet(strides: Sequence[Stride], *, scale: float = 1.0) -> Backbone:
    """PP-LCNet. `scale`: multiplies the published channels."""
    return PPLCNet(scale)
