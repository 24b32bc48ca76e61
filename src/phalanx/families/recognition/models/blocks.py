"""What several recognition networks share. Shapes: B batch, C channels, T positions along the line."""

from torch import Tensor

HEIGHTS = range(17, 49)  # of images that leave each of the backbones one row high: a sixteenth, rounded up, then pooled by two


def along_the_line(features: Tensor) -> Tensor:  # [B, C, 1, T] -> [B, T, C]
    """A map of height 1 as a sequence. Raises ValueError for another height: the images do not fit the network."""
    if features.shape[2] != 1:
        raise ValueError(
            f'the images leave the backbone {features.shape[2]} rows high, it must be 1: give them the height of the network'
        )
    return features.squeeze(2).transpose(1, 2)
