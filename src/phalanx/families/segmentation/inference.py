"""Inference on images: whole or by sliding windows, with test-time augmentation by scales and flips.

As in PaddleSeg since its release 2.8 (paddleseg/core/infer.py): every scale is computed from the image itself, and logits are
averaged over windows, scales and flips. Up to 2.7 it added the probabilities of scales and flips, and computed each scale from
the one before. Shapes: B images, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.runtime.prepare import check_input_size, scaled_size
from phalanx.runtime.views import Views, flips, window_starts


@dataclass(frozen=True, kw_only=True)
class Inference(Views):
    """Settings of inference; a call returns the logits [B, K, H, W] of normalised images [B, 3, H, W].

    With `window` (height, width), the network runs on windows of that size, `window_stride` (down, across) apart; logits are
    averaged where they overlap. The last window of a row or column is shifted back to end with the image; an image smaller than
    a window is run whole.

    With `scales` other than 1 or with flips, the network runs on every combination of them; the logits of all these views are
    averaged at the size of the image. Raises ValueError for settings that leave pixels out.
    """

    flip_vertical: bool = False

    def __call__(self, network: nn.Module, images: Tensor) -> Tensor:
        views = list(product(self.scales, flips(horizontal=self.flip_horizontal, vertical=self.flip_vertical)))
        # Summed as they come: all views at once would not fit into memory.
        total = self.view(network, images, *views[0])
        for scale, flip in views[1:]:
            total = total + self.view(network, images, scale, flip)
        return total / len(views)

    def view(self, network: nn.Module, images: Tensor, scale: float, flip: tuple[int, ...]) -> Tensor:
        """Return the logits [B, K, H, W] of one scale and flip, both undone. Raises TooLargeError."""
        H, W = images.shape[2:]
        size = scaled_size((H, W), scale)
        check_input_size(*size)
        # The same flip undoes itself.
        logits = self.logits(network, resize(images, size).flip(flip)).flip(flip)
        return resize(logits.float(), (H, W))

    def logits(self, network: nn.Module, images: Tensor) -> Tensor:
        """Return the logits [B, K, H, W] of one view of the images, window by window where set."""
        if self.window is None or self.window_stride is None:
            return main_logits(network(images))
        H, W = images.shape[2:]
        total, count = None, images.new_zeros(H, W)
        (height, width), (down, across) = self.window, self.window_stride
        # Windows overlap by default; each pixel gets the mean of the windows that contain it.
        for top, left in product(window_starts(H, height, down), window_starts(W, width, across)):
            rows, columns = slice(top, top + height), slice(left, left + width)
            logits = main_logits(network(images[:, :, rows, columns])).float()
            if total is None:
                total = logits.new_zeros(len(images), logits.shape[1], H, W)
            total[:, :, rows, columns] += logits
            count[rows, columns] += 1
        assert total is not None
        return total / count


def main_logits(outputs: Sequence[Tensor]) -> Tensor:
    """Return the first output of a network, its logits [B, K, H, W]."""
    return outputs[0]


def argmax_classes(outputs: Sequence[Tensor]) -> Tensor:
    """Return the class of each pixel, [B, H, W] uint8."""
    return main_logits(outputs).argmax(1).to(torch.uint8)


def resize(maps: Tensor, size: tuple[int, int]) -> Tensor:  # [B, C, h, w] -> [B, C, *size]
    return maps if maps.shape[2:] == size else F.interpolate(maps, size, mode='bilinear')
