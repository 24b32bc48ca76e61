"""Lovász-Softmax: a smooth stand-in for 1 - IoU. Shapes: B batch, K classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.precision import at_least_float32
from phalanx.segmentation.labels import VOID
from phalanx.step import WholeStep
from phalanx.task import Term

BINS = 1 << 14  # of errors: steps of 6e-5


@dataclass(frozen=True, kw_only=True)
class LovaszSoftmax:
    """The Lovász extension of 1 - IoU over the whole step, its mean over the classes that are there, as in PaddleSeg.

    Berman et al., The Lovász-Softmax loss, https://arxiv.org/abs/1705.08790. The error of a pixel is how far the probability of
    a class is from the truth, 0 or 1. From the largest error down, each counts by how much 1 - IoU would grow, were its pixel
    wrong like all before it. That depends on nothing but how many pixels of the class and of others come before. So nothing is
    sorted or gathered: the step counts both in bins of errors (5 MB for 19 classes), and the result does not depend on its cut.
    The pixels of one bin share its growth; taken one by one they would differ by no more than their place in it.
    """

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:  # [B, K, H, W], [B, H, W]
        probabilities = at_least_float32(logits).softmax(1)
        K = logits.shape[1]
        judged = (labels != VOID).unsqueeze(1)  # [B, 1, H, W]
        is_own = labels.unsqueeze(1) == torch.arange(K, device=labels.device)[:, None, None]  # [B, K, H, W]
        errors = torch.where(is_own, 1 - probabilities, probabilities) * judged
        with torch.no_grad():
            places = places_of(errors, is_own)
            counts = torch.zeros(2 * K * BINS, dtype=torch.int64, device=labels.device)
            counts.scatter_add_(0, places.flatten(), judged.expand_as(places).flatten().long())
            others, own = whole.sum(counts).view(2, K, BINS)
            growth = growth_of(others, own).to(errors.dtype)
            classes = (own.sum(1) > 0).sum().clamp(min=1)
            samples = torch.tensor(len(labels), dtype=errors.dtype, device=labels.device)
            share = samples / whole.sum(samples)  # the step's totals add up to its loss, so its weights must add up to 1
        return Term((errors * growth.flatten()[places]).sum() / classes, share)

    def check(self, num_classes: int) -> None:
        """Every number of classes will do."""


def places_of(errors: Tensor, is_own: Tensor) -> Tensor:
    """Which of the counts [2, K, BINS], laid out flat, each error [B, K, H, W] belongs to; the second half is of `is_own`."""
    bins = (errors * BINS).long().clamp(0, BINS - 1)  # from 0: a NaN must reach the loss, and not end as a wrong index
    classes = torch.arange(errors.shape[1], device=errors.device)[:, None, None]
    return (is_own * errors.shape[1] + classes) * BINS + bins


def growth_of(others: Tensor, own: Tensor) -> Tensor:
    """How much 1 - IoU grows with each pixel, [2, K, BINS]: one of another class, then one of the class itself.

    `others` and `own` [K, BINS] are the counts. Once P of the G pixels of a class and N others are wrong, 1 - IoU is
    1 - (G - P) / (G + N). Within a bin the mean is taken of the two orders: first all others, or first all of the class.
    """
    others, own = others.double(), own.double()
    larger_others, larger_own = (counts.sum(1, keepdim=True) - counts.cumsum(1) for counts in (others, own))  # N and P before
    size = own.sum(1, keepdim=True)
    before = (size + larger_others).clamp(min=1)  # union before the bin; a class that is nowhere grows by 0
    after = before + others
    return torch.stack([(size - larger_own - own / 2) / (before * after), (1 / before + 1 / after) / 2])
