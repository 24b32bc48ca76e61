"""Parts shared by recognition networks. Shapes: B batch, C channels, T time steps along the line."""

from torch import Tensor

HEIGHTS = range(17, 49)  # of images: the backbones reduce them to one row (1/16, rounded up, then pooled by 2)


def to_sequence(features: Tensor) -> Tensor:  # [B, C, 1, T] -> [B, T, C]
    """Turn a feature map of height 1 into a sequence (Im2Seq in PaddleOCR).

    Raises ValueError for another height: the images do not fit the network.
    """
    # One row of features per line: its columns are the time steps.
    if features.shape[2] != 1:
        raise ValueError(
            f'the backbone gives {features.shape[2]} rows, it must be 1: set image_size to the height of the network'
        )
    return features.squeeze(2).transpose(1, 2)
