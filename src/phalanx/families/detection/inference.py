"""Inference of detectors on images: whole or by sliding windows, with test-time augmentation by scales and flips.

The boxes of all views go through one suppression. Shapes: B images, A boxes of all views, K classes.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.outputs import check_fields
from phalanx.runtime.prepare import STEP, check_input_size, scaled_size
from phalanx.runtime.views import Views, flips, window_cores


@dataclass(frozen=True, kw_only=True)
class Inference(Views):
    """Settings of inference; a call returns boxes [B, A, 4] in pixels of the images and scores [B, A, K].

    With `window` (height, width), the network runs on windows of that size of the image after `eval_transforms`,
    `window_stride` (down, across) apart; the last window of a row or column is shifted back to end with the image. A box counts
    in the window in whose middle its centre is, so windows must overlap by the length of the largest object and 8 pixels. With
    `scales` other than 1 or with `flip_horizontal`, the network runs on every combination of them.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window and any(side % STEP for side in self.window):
            raise ValueError(f'window must be multiples of {STEP} pixels, got [{self.window[0]}, {self.window[1]}]')

    @property
    def has_several_views(self) -> bool:
        return self.window is not None or self.flip_horizontal or self.scales != (1.0,)

    def __call__(self, model: Any, images: Tensor) -> tuple[Tensor, Tensor]:
        """Raise TooLargeError if a scale makes an image too large."""
        if not self.has_several_views:
            return decode(model, images)
        views = product(self.scales, flips(horizontal=self.flip_horizontal, vertical=False))
        parts = [part for scale, flip in views for part in self.view(model, images, scale, is_mirrored=bool(flip))]
        return torch.cat([boxes for boxes, _ in parts], 1), torch.cat([scores for _, scores in parts], 1)

    def view(self, model: Any, images: Tensor, scale: float, *, is_mirrored: bool) -> list[tuple[Tensor, Tensor]]:
        """Boxes and scores of each window of one scale and flip, both undone."""
        (H, W), (h, w) = images.shape[2:], scaled_size((images.shape[2], images.shape[3]), scale)
        check_input_size(h, w)
        scaled = images if (h, w) == (H, W) else F.interpolate(images, (h, w), mode='bilinear')
        scaled = F.pad(scaled.flip(3) if is_mirrored else scaled, (0, -w % STEP, 0, -h % STEP))
        parts = []
        for boxes, scores in self.windows(model, scaled):
            x0, y0, x1, y1 = boxes.unbind(2)
            x0, x1 = (w - x1, w - x0) if is_mirrored else (x0, x1)
            parts.append((torch.stack([x0 * W / w, y0 * H / h, x1 * W / w, y1 * H / h], 2), scores))
        return parts

    def windows(self, model: Any, images: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Boxes in pixels of `images` and scores of each window; the scores of boxes that count in another one are 0."""
        if self.window is None or self.window_stride is None:
            return [decode(model, images)]
        (height, width), (down, across), parts = self.window, self.window_stride, []
        rows, columns = window_cores(images.shape[2], height, down), window_cores(images.shape[3], width, across)
        for (top, least_y, most_y), (left, least_x, most_x) in product(rows, columns):
            boxes, scores = decode(model, images[:, :, top : top + height, left : left + width])
            x0, y0, x1, y1 = boxes.unbind(2)  # numbers of Python are added: a tensor of them would make the host wait
            boxes = torch.stack([x0 + left, y0 + top, x1 + left, y1 + top], 2)
            x, y = ((boxes[..., :2] + boxes[..., 2:]) / 2).unbind(2)
            counts = (least_x <= x) & (x < most_x) & (least_y <= y) & (y < most_y)
            parts.append((boxes, scores * counts[..., None]))
        return parts


class Pair(NamedTuple):
    """Result of `decode` of a network."""

    boxes: Tensor  # [B, A, 4] in pixels of the input
    scores: Tensor  # [B, A, K]


def decode(model: Any, images: Tensor) -> Pair:
    """Predict boxes and scores. Raises RunError if the network, which may be a plug-in's, returns something else."""
    decoded = model.decode(model(images))
    pair: Pair = Pair(*decoded) if isinstance(decoded, tuple | list) and len(decoded) == len(Pair._fields) else decoded
    check_fields('evaluation, from `decode`,', pair, {'boxes': (len(images), 'A', 4), 'scores': (len(images), 'A', 'K')})
    return pair
