"""Contrastive denoising: queries made from true boxes with noise, which a detector has to undo.

Li et al., DN-DETR, https://arxiv.org/abs/2203.01305; Zhang et al., DINO, https://arxiv.org/abs/2203.03605. Shapes: B batch,
N true boxes per image (the maximum of the step), D = 2 * groups * N denoising queries: of each group first the N positive ones,
whose corners moved by up to half a side, then the N negative ones, whose corners moved further. A fixed number of queries ends
with groups that no loss sees.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from phalanx.families.detection.loss.assign import Truths
from phalanx.families.detection.queries import centres, inverse_sigmoid
from phalanx.nn.stochastic import RandomLayer, uniform


class Noisy(NamedTuple):
    content: Tensor  # [B, D, C]
    unactivated: Tensor  # [B, D, 4], logits of the boxes
    group: int | Tensor  # queries per group, 2 * N

    def mask(self, queries: int) -> Tensor:
        """Bool [D + Q, D + Q], True where a query does not see another: other groups, and any group from the `queries`."""
        D, device = self.content.shape[1], self.content.device
        groups = torch.arange(D + queries, device=device) // self.group
        groups[D:] = -1
        return (groups[:, None] != groups) & (groups >= 0)


class Denoising(RandomLayer):
    """Truths of a batch -> `Noisy`: about `count` positive queries per image, at least one per true box.

    The noise of an image follows its key, not its place in the batch or its rank. A class is replaced with the probability
    `label_noise` / 2, and a corner moves by up to `box_noise` / 2 of the side; those of negative queries twice as far.
    """

    def __init__(
        self, num_classes: int, channels: int, *, count: int, label_noise: float, box_noise: float, swaps: bool
    ) -> None:
        """`swaps`: corners that changed places still span a box (D-FINE); else it has no size (RT-DETR)."""
        super().__init__()
        self.swaps = swaps
        self.classes, self.count, self.label_noise, self.box_noise = num_classes, count, label_noise, box_noise
        self.embedding = nn.Embedding(num_classes + 1, channels, padding_idx=num_classes)

    def forward(self, truths: Truths, size: Tensor) -> Noisy:
        """`size` [B, 2] is that of the input in pixels."""
        B, padded = truths.classes.shape
        # As a tensor, N decides what the queries are, but not how many.
        N = padded if truths.most is None else truths.most
        D = self.used(padded) if truths.most is None else 2 * max(self.count, padded)
        places = torch.arange(D, device=size.device)
        of, is_negative = places % N, places // N % 2
        numbers = uniform(self.draw_keys(truths.classes), torch.Size((B, D, 10)))
        exist = truths.exist[:, of]
        # A random class instead of some of the true ones; padding has a class of its own, whose embedding is zero.
        is_new = (numbers[..., 0] < self.label_noise / 2) & exist
        random = (numbers[..., 1] * self.classes).long()
        classes = torch.where(exist, truths.classes[:, of], self.classes)
        classes = torch.where(is_new, random, classes)
        # Each corner moves by a share of half the side, in a random direction; beyond the half for negative queries.
        boxes = truths.boxes[:, of] / size.repeat(1, 2)[:, None].to(truths.boxes.dtype)
        sides = (boxes[..., 2:] - boxes[..., :2]).repeat(1, 1, 2)
        shares = numbers[..., 2:6] + is_negative[:, None]
        signs = torch.where(numbers[..., 6:] < 0.5, -1, 1)
        moved = (boxes + signs * shares * sides * (self.box_noise / 2)).clamp(0, 1)
        boxes = centres(moved).abs() if self.swaps else centres(moved)
        return Noisy(self.embedding(classes), inverse_sigmoid(boxes), 2 * N)

    def used(self, most: int) -> int:
        """Number of queries for `most` true boxes per image."""
        return 2 * most * max(self.count // most, 1)
