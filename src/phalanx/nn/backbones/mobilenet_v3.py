"""MobileNetV3: inverted residuals, of which some weigh their channels.

Howard et al., Searching for MobileNetV3, https://arxiv.org/abs/1905.02244. The slope of the hard sigmoid as in PaddleOCR.
Shapes: B batch, C channels.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from torch import Tensor, nn

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.layers import (
    ConvBN,
    ConvBNHardswish,
    ConvBNReLU,
    ConvBNReLU6,
    SqueezeExcitation,
    Stride,
    initialise_as_paddle,
    run_stages,
    scale_channels,
)


class Block(NamedTuple):
    """One inverted residual as it is in the published network, at scale 1."""

    kernel_size: int
    inner: int
    channels: int
    squeeze: bool
    activation: Literal['relu', 'relu6', 'hardswish']
    stride: Stride = 1


STEM_CHANNELS, LAST_CHANNELS = 16, 960
LARGE = (  # in stages: each gives a map, at half the size of the one before
    (Block(3, 16, 16, False, 'relu'), Block(3, 64, 24, False, 'relu', 2), Block(3, 72, 24, False, 'relu')),
    (Block(5, 72, 40, True, 'relu', 2), Block(5, 120, 40, True, 'relu'), Block(5, 120, 40, True, 'relu')),
    (
        Block(3, 240, 80, False, 'hardswish', 2),
        Block(3, 200, 80, False, 'hardswish'),
        Block(3, 184, 80, False, 'hardswish'),
        Block(3, 184, 80, False, 'hardswish'),
        Block(3, 480, 112, True, 'hardswish'),
        Block(3, 672, 112, True, 'hardswish'),
    ),
    (Block(5, 672, 160, True, 'hardswish', 2), Block(5, 960, 160, True, 'hardswish'), Block(5, 960, 160, True, 'hardswish')),
)
HALVED_LAST_STAGE = (
    Block(5, 336, 80, True, 'hardswish', 2),
    Block(5, 480, 80, True, 'hardswish'),
    Block(5, 480, 80, True, 'hardswish'),
)
CONVS: dict[str, type[ConvBN]] = {'relu': ConvBNReLU, 'relu6': ConvBNReLU6, 'hardswish': ConvBNHardswish}


class MobileNetV3(nn.Module):
    """images [B, 3, H, W] -> four maps, of 1/4, 1/8, 1/16 and 1/32 of the size (rounded up), `channels` deep."""

    strides: tuple[int, ...] = (4, 8, 16, 32)
    channels: tuple[int, ...]

    def __init__(
        self,
        stages: Sequence[Sequence[Block]] = LARGE,
        *,
        last_channels: int = LAST_CHANNELS,
        scale: float,
        squeeze: bool = True,
    ) -> None:
        """`scale`: how many channels there are, as a share of the paper's. Without `squeeze`, no block weighs its channels."""
        super().__init__()
        before = scale_channels(STEM_CHANNELS, scale)
        self.stem = ConvBNHardswish(3, before, 3, stride=2)
        self.stages = nn.ModuleList()
        for blocks in stages:
            stage = nn.Sequential()
            for block in blocks:
                stage.append(InvertedResidual(before, block, scale, squeeze=squeeze))
                before = scale_channels(block.channels, scale)
            self.stages.append(stage)
        last = scale_channels(last_channels, scale)
        self.last = ConvBNHardswish(before, last, 1)
        self.channels = (*(scale_channels(blocks[-1].channels, scale) for blocks in stages[:-1]), last)
        initialise_as_paddle(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        *maps, coarsest = run_stages(self.stages, self.stem(images))
        return [*maps, self.last(coarsest)]


class HalvedMobileNetV3(MobileNetV3):
    """images [B, 3, H, W] -> two maps, of 1/8 and 1/32 of the size (rounded up), `channels` deep.

    The last stage has half of the paper's channels, as in PaddleSeg 0.8. The first map is the widened one inside the last block
    of its size.
    """

    strides = (8, 32)

    def __init__(self) -> None:
        super().__init__((*LARGE[:-1], HALVED_LAST_STAGE), last_channels=480, scale=1.0)
        self.channels = (LARGE[1][-1].inner, 480)

    def forward(self, images: Tensor) -> list[Tensor]:
        fine, x = run_with_expansion(self.stages[1].children(), self.stages[0](self.stem(images)))
        return [fine, self.last(self.stages[3](self.stages[2](x)))]


def mobilenet_v3_halved(strides: Sequence[Stride]) -> Backbone:
    """MobileNetV3-large as PaddleSeg's LR-ASPP has it: half of the channels in its last stage, maps of strides 8 and 32."""
    return HalvedMobileNetV3()


class InvertedResidual(nn.Module):
    """x [B, in, H, W] -> [B, out, h, w]: widened, filtered by channel, narrowed; beside a shortcut where one fits."""

    def __init__(self, in_channels: int, block: Block, scale: float, *, squeeze: bool = True, shortcut: bool = True) -> None:
        """Without `squeeze` or `shortcut` there is none, whatever `block` says and would fit."""
        super().__init__()
        inner, out_channels = scale_channels(block.inner, scale), scale_channels(block.channels, scale)
        conv = CONVS[block.activation]
        self.widen = conv(in_channels, inner, 1)
        self.filter = conv(inner, inner, block.kernel_size, stride=block.stride, groups=inner)
        self.squeeze = SqueezeExcitation(inner, slope=0.2) if block.squeeze and squeeze else nn.Identity()
        self.narrow = ConvBN(inner, out_channels, 1)
        self.has_shortcut = shortcut and block.stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_with_expansion(x)[1]

    def forward_with_expansion(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Also what it filters by channel, [B, inner, h, w]: what a decoder takes up, as it is before it is narrowed."""
        inner: Tensor = self.filter(self.widen(x))
        y: Tensor = self.narrow(self.squeeze(inner))
        return inner, x + y if self.has_shortcut else y


def run_with_expansion(blocks: Iterable[nn.Module], x: Tensor) -> tuple[Tensor, Tensor]:
    """What the last of `blocks`, inverted residuals, filters by channel, and what they all make of `x`."""
    *earlier, last = blocks
    for block in earlier:
        x = block(x)
    assert isinstance(last, InvertedResidual)
    return last.forward_with_expansion(x)
