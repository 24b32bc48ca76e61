"""CSPRepResNet, the backbone of PP-YOLOE, and the blocks that its neck shares with it.

Xu et al., PP-YOLOE: An evolved version of YOLO, https://arxiv.org/abs/2203.16250. Layer order and channels as in
PaddleDetection. Shapes: B batch, C channels.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from phalanx.nn.backbones.backbone import Backbone
from phalanx.nn.layers import ConvBN, ConvBNSiLU, Stride, initialise_convs, run_stages


class CSPRepResNet(nn.Module):
    """images [B, 3, H, W] -> four maps, of 1/4, 1/8, 1/16 and 1/32 of the size (rounded up), `channels` deep."""

    strides = (4, 8, 16, 32)

    def __init__(self, *, width: float, depth: float, alpha: bool) -> None:
        """`width` and `depth` multiply the channels and the blocks of size l; `alpha`: as in RepBlock."""
        super().__init__()
        channels = [round(count * width) for count in (64, 128, 256, 512, 1024)]
        blocks = [max(round(count * depth), 1) for count in (3, 6, 6, 3)]
        half = channels[0] // 2
        self.stem = nn.Sequential(ConvBNSiLU(3, half, 3, stride=2), ConvBNSiLU(half, half, 3), ConvBNSiLU(half, channels[0], 3))
        self.stages = nn.ModuleList(
            downsampling_stage(before, after, count, alpha=alpha)
            for before, after, count in zip(channels, channels[1:], blocks, strict=False)
        )
        self.channels = tuple(channels[1:])
        initialise_convs(self)

    def forward(self, images: Tensor) -> list[Tensor]:  # [B, 3, H, W]
        return run_stages(self.stages, self.stem(images))


def csp_rep_resnet(strides: Sequence[Stride], width: float = 0.5, depth: float = 0.33, alpha: bool = False) -> Backbone:
    """CSPRepResNet of size s. PP-YOLOE hands over the `width` and `depth` of its own size, and `alpha` for PP-YOLOE+."""
    return CSPRepResNet(width=width, depth=depth, alpha=alpha)


def downsampling_stage(in_channels: int, out_channels: int, num_blocks: int, *, alpha: bool) -> nn.Sequential:
    """A stage of the backbone: [B, in, H, W] -> [B, out, H/2, W/2]."""
    middle = (in_channels + out_channels) // 2
    blocks = [BasicBlock(middle // 2, shortcut=True, alpha=alpha) for _ in range(num_blocks)]
    return nn.Sequential(
        ConvBNSiLU(in_channels, middle, 3, stride=2),
        CSPStage(middle, middle // 2, out_channels, blocks=blocks, attention=EffectiveSqueezeExcitation(middle)),
    )


class CSPStage(nn.Module):
    """Cross-stage partial: [B, in, H, W] -> [B, out, H, W]. One `half` goes through the blocks, the other beside them."""

    def __init__(
        self, in_channels: int, half: int, out_channels: int, *, blocks: Iterable[nn.Module], attention: nn.Module
    ) -> None:
        super().__init__()
        self.beside = ConvBNSiLU(in_channels, half, 1)
        self.through = ConvBNSiLU(in_channels, half, 1)
        self.blocks = nn.Sequential(*blocks)
        self.attention = attention
        self.out = ConvBNSiLU(2 * half, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        halves = torch.cat([self.beside(x), self.blocks(self.through(x))], dim=1)
        out: Tensor = self.out(self.attention(halves))
        return out


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, the second re-parameterised: [B, C, H, W] -> the same."""

    def __init__(self, channels: int, *, shortcut: bool, alpha: bool) -> None:
        super().__init__()
        self.first = ConvBNSiLU(channels, channels, 3)
        self.second = RepBlock(channels, alpha=alpha)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return x + y if self.shortcut else y


class RepBlock(nn.Module):
    """A 3x3 convolution beside a 1x1 one in training, a single 3x3 one after `fuse`: [B, C, H, W] -> the same.

    With `alpha` (PP-YOLOE+) a learned factor scales the 1x1 branch. Ding et al., RepVGG, https://arxiv.org/abs/2101.03697.
    """

    def __init__(self, channels: int, *, alpha: bool) -> None:
        super().__init__()
        self.large = ConvBN(channels, channels, 3)
        self.small = ConvBN(channels, channels, 1)
        self.alpha = nn.Parameter(torch.ones(1)) if alpha else None

    def forward(self, x: Tensor) -> Tensor:
        small = self.small(x)
        if self.alpha is not None:
            small = _branch_scale(self.alpha) * small
        return F.silu(self.large(x) + small)

    def fuse_branches(self) -> nn.Sequential:
        """What this block does in evaluation mode, as one convolution and SiLU."""
        large, small = (fuse_conv_bn_eval(branch.conv, branch.norm) for branch in (self.large, self.small))
        assert large.bias is not None and small.bias is not None
        factor = 1 if self.alpha is None else _branch_scale(self.alpha)
        with torch.no_grad():
            large.weight.add_(factor * F.pad(small.weight, (1, 1, 1, 1)))
            large.bias.add_(factor * small.bias)
        return nn.Sequential(large, nn.SiLU())


def _branch_scale(alpha: Tensor) -> Tensor:
    """What `alpha` [1] scales by, []: PaddleDetection tests `if alpha:`, which is true above 0 only, and else does not scale.

    Without an axis, it does not turn a map of half precision into one of single.
    """
    return torch.where(alpha > 0, alpha, 1.0).squeeze()


def fuse(network: nn.Module) -> None:
    """Replaces every RepBlock of `network` by its single convolution, for evaluation and export; training ends here."""
    for module in network.modules():
        for name, child in module.named_children():
            if isinstance(child, RepBlock):
                setattr(module, name, child.eval().fuse_branches())


class EffectiveSqueezeExcitation(nn.Module):
    """Each channel scaled by a function of the means of all channels: [B, C, H, W] -> the same.

    The "effective" kind, with a single layer. Lee and Park, CenterMask, https://arxiv.org/abs/1911.06667.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.fc(x.mean((2, 3), keepdim=True)))
