"""What several recognition networks do alike. Shapes: B batch, C channels, T places along the line."""

from __future__ import annotations

import math

from torch import Tensor, nn

HEIGHTS = range(17, 49)  # of images that leave each of the backbones one row high: a sixteenth, rounded up, then pooled by two


def along_the_line(features: Tensor) -> Tensor:  # [B, C, 1, T] -> [B, T, C]
    """A map of height 1 as a sequence. Raises ValueError for another height: the images do not fit the network."""
    if features.shape[2] != 1:
        raise ValueError(
            f'the images leave the backbone {features.shape[2]} rows high, it must be 1: give them the height of the network'
        )
    return features.squeeze(2).transpose(1, 2)


def initialise_as_paddle(model: nn.Module) -> None:
    """Draws convolutions and linear layers of `model` as Paddle does by itself; biases are zero.

    Convolutions: normal, of variance 2 / (kernel area x input channels), all channels counted whatever the groups. Linear
    layers: Glorot uniform.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=math.sqrt(2 / (math.prod(module.kernel_size) * module.in_channels)))
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
