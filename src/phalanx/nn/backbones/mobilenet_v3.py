"""MobileNetV3: inverted residuals, some with squeeze-and-excitation.

Howard et al., Searching for MobileNetV3, https://arxiv.org/abs/1905.02244. Slope of the hard sigmoid as in PaddleOCR.
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
    """Parameters of an inverted residual of the published network, at scale 1."""

    kernel_size: int
    inner: int  # channels after expansion
    channels: int
    squeeze: bool
    activation: Literal['relu', 'relu6', 'hardswish']
    stride: Stride = 1


STEM_CHANNELS, LAST_CHANNELS = 16, 960
LARGE = (  # in stages; each halves the map
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
    """images [B, 3, H, W] -> maps of strides 4, 8, 16 and 32, with `channels`."""

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
        """`scale`: multiplies the channels of the paper. `squeeze=False` leaves out squeeze-and-excitation."""
        super().__init__()
        # Stages of inverted residuals; channels are rounded to multiples of 8 after scaling.
        before = scale_channels(STEM_CHANNELS, scale)
        self.stem = ConvBNHardswish(3, before, 3, stride=2)
        self.stages = nn.ModuleList()
        for blocks in stages:
            stage = nn.Sequential()
            for block in blocks:
                stage.append(InvertedResidual(before, block, scale, squeeze=squeeze))
                before = scale_channels(block.channels, scale)
            self.stages.append(stage)
        # The 1x1 convolution that precedes pooling in the classifier ends the coarsest stage.
        last = scale_channels(last_channels, scale)
        self.last = ConvBNHardswish(before, last, 1)
        self.channels = (*(scale_channels(blocks[-1].channels, scale) for blocks in stages[:-1]), last)
        initialise_as_paddle(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        *maps, coarsest = run_stages(self.stages, self.stem(images))
        return [*maps, self.last(coarsest)]


class HalvedMobileNetV3(MobileNetV3):
    """images [B, 3, H, W] -> two maps, of strides 8 and 32, with `channels`.

    The last stage has half of the paper's channels, as in PaddleSeg 0.8. The first map is the expanded one inside the last
    block of stride 8.
    """

    strides = (8, 32)

    def __init__(self) -> None:
        super().__init__((*LARGE[:-1], HALVED_LAST_STAGE), last_channels=480, scale=1.0)
        self.channels = (LARGE[1][-1].inner, 480)

    def forward(self, images: Tensor) -> list[Tensor]:
        # Stages have strides 4, 8, 16 and 32.
        fine, x = run_with_expansion(self.stages[1].children(), self.stages[0](self.stem(images)))
        return [fine, self.last(self.stages[3](self.stages[2](x)))]


def mobilenet_v3_halved(strides: Sequence[Stride]) -> Backbone:
    """MobileNetV3-large of PaddleSeg's LR-ASPP: half the channels in its last stage, maps of strides 8 and 32."""
    return HalvedMobileNetV3()


class InvertedResidual(nn.Module):
    """Inverted residual x [B, in, H, W] -> [B, out, h, w]: expansion, depthwise convolution, SE, projection, shortcut."""

    def __init__(self, in_channels: int, block: Block, scale: float, *, squeeze: bool = True, shortcut: bool = True) -> None:
        """`squeeze=False` and `shortcut=False` leave these out even where `block` has them."""
        super().__init__()
        # Expansion (1x1), depthwise convolution, SE, linear projection (1x1).
        inner, out_channels = scale_channels(block.inner, scale), scale_channels(block.channels, scale)
        conv = CONVS[block.activation]
        self.widen = conv(in_channels, inner, 1)  # expansion
        self.filter = conv(inner, inner, block.kernel_size, stride=block.stride, groups=inner)
        self.squeeze = SqueezeExcitation(inner, slope=0.2) if block.squeeze and squeeze else nn.Identity()
        self.narrow = ConvBN(inner, out_channels, 1)  # projection
        self.has_shortcut = shortcut and block.stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_with_expansion(x)[1]

    def forward_with_expansion(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the expanded map [B, inner, h, w] after the depthwise convolution, for decoders, and the output."""
        # LR-ASPP and other decoders use the expanded map, which has more channels than the output.
        inner: Tensor = self.filter(self.widen(x))
        y: Tensor = self.narrow(self.squeeze(inner))
        return inner, x + y if self.has_shortcut else y


def run_with_expansion(blocks: Iterable[nn.Module], x: Tensor) -> tuple[Tensor, Tensor]:
    """Run inverted residuals on `x`; return the expanded map inside the last one, and the output."""
    *earlier, last = blocks
    for block in earlier:
        x = block(x)
    assert isinstance(last, InvertedResidual)
    return last.forward_with_expansion(x)
