"""CSPRepResNet, the backbone of PP-YOLOE, and the blocks shared with its neck.

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
    """images [B, 3, H, W] -> maps of strides 4, 8, 16 and 32, with `channels`."""

    strides = (4, 8, 16, 32)

    def __init__(self, *, width: float, depth: float, alpha: bool) -> None:
        """`width` and `depth` multiply the channels and blocks of size l; `alpha`: as in RepBlock."""
        super().__init__()
        channels = [round(count * width) for count in (64, 128, 256, 512, 1024)]
        blocks = [max(round(count * depth), 1) for count in (3, 6, 6, 3)]
        # Stem of three 3x3 convolutions, the first of stride 2; each stage then halves the map.
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
    """CSPRepResNet of size s. PP-YOLOE passes the `width` and `depth` of its own size, and `alpha` for PP-YOLOE+."""
    return CSPRepResNet(width=width, depth=depth, alpha=alpha)


def downsampling_stage(in_channels: int, out_channels: int, num_blocks: int, *, alpha: bool) -> nn.Sequential:
    """Return a stage of the backbone: [B, in, H, W] -> [B, out, H/2, W/2]."""
    middle = (in_channels + out_channels) // 2
    # Half of the channels go through the blocks; ESE attention weighs all of them.
    blocks = [BasicBlock(middle // 2, shortcut=True, alpha=alpha) for _ in range(num_blocks)]
    return nn.Sequential(
        ConvBNSiLU(in_channels, middle, 3, stride=2),
        CSPStage(middle, middle // 2, out_channels, blocks=blocks, attention=EffectiveSqueezeExcitation(middle)),
    )


class CSPStage(nn.Module):
    """Cross-stage partial (CSP) stage, [B, in, H, W] -> [B, out, H, W]: `half` of the channels bypass the blocks."""

    def __init__(
        self, in_channels: int, half: int, out_channels: int, *, blocks: Iterable[nn.Module], attention: nn.Module
    ) -> None:
        super().__init__()
        # conv1 and conv2 of the original, conv3 at the end
        self.beside = ConvBNSiLU(in_channels, half, 1)
        self.through = ConvBNSiLU(in_channels, half, 1)
        self.blocks = nn.Sequential(*blocks)
        self.attention = attention
        self.out = ConvBNSiLU(2 * half, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        # The order of concatenation is that of the weights of `out`.
        halves = torch.cat([self.beside(x), self.blocks(self.through(x))], dim=1)
        out: Tensor = self.out(self.attention(halves))
        return out


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, the second re-parameterised (RepBlock): [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, channels: int, *, shortcut: bool, alpha: bool) -> None:
        super().__init__()
        self.first = ConvBNSiLU(channels, channels, 3)
        self.second = RepBlock(channels, alpha=alpha)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return x + y if self.shortcut else y


class RepBlock(nn.Module):
    """RepVGG block: parallel 3x3 and 1x1 convolutions in training, a single 3x3 one after `fuse`. [B, C, H, W] -> [B, C, H, W].

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
        """Return this block in evaluation mode as one convolution and SiLU."""
        # Fold each batch norm into its convolution: w * gamma / std, beta - mean * gamma / std.
        large, small = (fuse_conv_bn_eval(branch.conv, branch.norm) for branch in (self.large, self.small))
        assert large.bias is not None and small.bias is not None
        factor = 1 if self.alpha is None else _branch_scale(self.alpha)
        # A 1x1 kernel is a 3x3 kernel with zeros around it, so both branches add up to one kernel and one bias.
        with torch.no_grad():
            large.weight.add_(factor * F.pad(small.weight, (1, 1, 1, 1)))
            large.bias.add_(factor * small.bias)
        return nn.Sequential(large, nn.SiLU())


def _branch_scale(alpha: Tensor) -> Tensor:
    """Return the factor [] for `alpha` [1]: `alpha` above 0, else 1, since PaddleDetection tests `if alpha:`.

    As a scalar tensor without axes, it does not promote a map in half precision to float32.
    """
    return torch.where(alpha > 0, alpha, 1.0).squeeze()


def fuse(network: nn.Module) -> None:
    """Replace every RepBlock of `network` by its single convolution, for evaluation and export, not for training."""
    for module in network.modules():
        for name, child in module.named_children():
            if isinstance(child, RepBlock):
                setattr(module, name, child.eval().fuse_branches())


class EffectiveSqueezeExcitation(nn.Module):
    """ESE attention: x [B, C, H, W] -> x * hardsigmoid(fc(avg_pool(x))).

    Effective squeeze-and-excitation has a single layer. Lee and Park, CenterMask, https://arxiv.org/abs/1911.06667.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.fc(x.mean((2, 3), keepdim=True)))
