"""Lovász-Softmax and Lovász hinge: convex surrogates of 1 - IoU. Shapes: B batch, K classes."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.loss.pixel_loss import PixelLoss, count_samples, one_hot
from phalanx.families.task import Term
from phalanx.nn.precision import at_least_float32
from phalanx.parallel.step import WholeStep

BINS = 1 << 14  # of the error histogram: steps of 6e-5
EPSILON = 1e-9  # as in PaddleSeg: keeps the score of a pixel above -21


@dataclass(frozen=True, kw_only=True)
class LovaszSoftmax(PixelLoss):
    """Lovász extension of 1 - IoU over the whole step, averaged over the classes present, as in PaddleSeg.

    Berman et al., The Lovász-Softmax loss, https://arxiv.org/abs/1705.08790. The error of a pixel is |probability - truth|. In
    order of falling error, each is weighted by the growth of 1 - IoU when its pixel joins the wrong ones before it
    (`lovasz_grad`). This depends only on the numbers of pixels, of the class and of others, with larger errors. So nothing is
    sorted or gathered: both are counted over all ranks in a histogram of errors (5 MB for 19 classes), and the result does not
    depend on how the step is split. The pixels of a bin share its growth, an approximation within the width of a bin.
    """

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:  # [B, K, H, W], [B, H, W]
        probabilities = at_least_float32(logits).softmax(1)
        valid = (labels != VOID).unsqueeze(1)  # [B, 1, H, W]
        is_own = one_hot(labels, logits.shape[1])  # [B, K, H, W]
        # Void pixels have error 0, and count neither as members nor as others.
        errors = torch.where(is_own, 1 - probabilities, probabilities) * valid
        # The gradient flows through the errors alone; their weights are constants.
        with torch.no_grad():
            places = find_bins(errors, is_own)
            others, own = count_pixels(places, valid, whole)
            is_present = own.sum(1, keepdim=True) > 0  # [K, 1]
            growth = (lovasz_grad(others, own) * is_present).to(errors.dtype)
            classes = is_present.sum().clamp(min=1)
        return Term((errors * growth.flatten()[places]).sum() / classes, step_share(labels, whole))

    def weights(self, labels: Tensor) -> None:
        """None: the growth of 1 - IoU at a pixel depends on the errors of all others of the step."""


@dataclass(frozen=True, kw_only=True)
class LovaszHinge(PixelLoss):
    """Lovász extension of 1 - IoU over the whole step with hinge errors, for the second of two classes, as in PaddleSeg.

    Berman et al. as above; Yu and Blaschko, The Lovász Hinge, https://arxiv.org/abs/1512.07797. The error of a pixel is the
    hinge max(0, 1 - score) if it belongs to the class, max(0, 1 + score) if not. Raises ValueError for other than two classes.
    """

    score: Literal['log_probability', 'log_odds'] = 'log_probability'
    """With p the probability of the class and e 1e-9: log(p + e / (1 - p + e)), about log p and log 2 where p is 1, as in
    PaddleSeg since 2.0; or the log-odds, as in the papers and PaddleSeg 0.x."""

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:  # [B, 2, H, W], [B, H, W]
        scores = self.scores(at_least_float32(logits))  # [B, 1, H, W]
        valid, is_own = (labels != VOID).unsqueeze(1), (labels == 1).unsqueeze(1)
        errors = F.relu(1 - torch.where(is_own, scores, -scores)) * valid
        with torch.no_grad():
            places = find_bins(errors / (1 + errors), is_own)  # x / (1 + x) keeps the order and stays below 1
            growth = lovasz_grad(*count_pixels(places, valid, whole)).to(errors.dtype)
        return Term((errors * growth.flatten()[places]).sum(), step_share(labels, whole))

    def scores(self, logits: Tensor) -> Tensor:
        """Return the scores of the second class, [B, 1, H, W]."""
        if self.score == 'log_odds':
            return logits[:, 1:] - logits[:, :1]
        probabilities = logits.softmax(1)[:, 1:]
        return (probabilities + EPSILON / (1 - probabilities + EPSILON)).log()

    def weights(self, labels: Tensor) -> None:
        """None, for the reason given in `LovaszSoftmax`."""

    def check(self, num_classes: int) -> None:
        if num_classes != 2:
            raise ValueError(
                f'lovasz_hinge needs 2 classes, but the data set has {num_classes}; use lovasz, which takes any number'
            )


def count_pixels(places: Tensor, valid: Tensor, whole: WholeStep) -> tuple[Tensor, Tensor]:
    """Count the valid pixels of the step per bin: those of other classes, and those of the class itself, [K, BINS] each."""
    K = places.shape[1]
    counts = torch.zeros(2 * K * BINS, dtype=torch.int64, device=places.device)
    counts.scatter_add_(0, places.flatten(), valid.expand_as(places).flatten().long())
    # One all-reduce of counts, whatever the number of pixels.
    others, own = whole.sum(counts).view(2, K, BINS)
    return others, own


def step_share(labels: Tensor, whole: WholeStep) -> Tensor:
    """Return the share of these samples in the step: totals that sum to the loss of the step need weights that sum to 1."""
    return count_samples(labels) / whole.count(len(labels))


def find_bins(errors: Tensor, is_own: Tensor) -> Tensor:
    """Return the index of each error [B, K, H, W] into the flattened counts [2, K, BINS]; the second half is for `is_own`."""
    # Bins of equal width; the index also encodes class and membership.
    bins = (errors * BINS).long().clamp(0, BINS - 1)  # clamped: a NaN must reach the loss, not become an index out of range
    classes = torch.arange(errors.shape[1], device=errors.device)[:, None, None]
    return (is_own * errors.shape[1] + classes) * BINS + bins


def lovasz_grad(others: Tensor, own: Tensor) -> Tensor:
    """Return the growth of 1 - IoU per pixel, [2, K, BINS]: for a pixel of another class, and for one of the class itself.

    `others` and `own` [K, BINS] are the counts. With P of the G pixels of a class and N others wrong, 1 - IoU is
    1 - (G - P) / (G + N); with G = 0 it is 1 from the first other pixel on. Within a bin, the two possible orders are averaged:
    all others first, and all of the class first.
    """
    others, own = others.double(), own.double()
    # N and P before the bin: numbers of wrong pixels with larger errors.
    larger_others, larger_own = (counts.sum(1, keepdim=True) - counts.cumsum(1) for counts in (others, own))
    size = own.sum(1, keepdim=True)
    before = (size + larger_others).clamp(min=1)  # union before the bin
    after = before + others
    # Intersection in the middle of the bin, times the growth of 1 / union.
    of_others = (size - larger_own - own / 2) / (before * after)
    # Without pixels of the class, 1 - IoU jumps from 0 to 1 at the first wrong pixel: the bin shares that jump.
    is_first = size + larger_others == 0
    return torch.stack([torch.where(is_first, 1 / others.clamp(min=1), of_others), (1 / before + 1 / after) / 2])
