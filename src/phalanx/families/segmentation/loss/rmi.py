"""Region mutual information: how much probabilities around a pixel say of the truth there.

Shapes: B batch, K classes, N regions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.loss.pixel_loss import PixelLoss, count_samples, one_hot
from phalanx.families.task import Term
from phalanx.nn.precision import at_least_float32
from phalanx.parallel.step import WholeStep

SIDE = 3  # of a region, and of the windows that are made one place before
RIDGE = 5e-4  # added to what is inverted, as in PaddleSeg
FLOOR = 1e-6  # added to probabilities, as in PaddleSeg


@dataclass(frozen=True, kw_only=True)
class RegionMutualInformation(PixelLoss):
    """Half the log-determinant of what the truth varies by once the probabilities are known, as in PaddleSeg.

    Zhao et al., Region Mutual Information Loss for Semantic Segmentation, https://arxiv.org/abs/1910.12037, without the
    cross-entropy that the paper adds; `mixed` adds it. Truth and probability (a sigmoid for each class) are first reduced to
    the maximum of each window of 3 x 3. A region is 3 x 3 such places, so nine numbers of truth and nine of probability.
    What the truth still varies by is its covariance over the regions of an image less what a linear regression on the
    probabilities explains. It is divided by nine, summed over classes, and its mean is taken over images; an image is
    taken by itself, so the cut of a batch does not matter.
    """

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:  # [B, K, H, W], [B, H, W]
        probabilities = at_least_float32(logits).sigmoid()
        valid = (labels != VOID).unsqueeze(1)  # [B, 1, H, W]
        is_own = one_hot(labels, logits.shape[1])  # [B, K, H, W]
        truth, guess = extract_regions(is_own.to(probabilities.dtype)), extract_regions(probabilities * valid + FLOOR)
        ridge = RIDGE * torch.eye(SIDE**2, dtype=truth.dtype, device=truth.device)
        together = truth @ guess.mT  # [B, K, 9, 9]
        explained = together @ torch.linalg.inv_ex(guess @ guess.mT + ridge).inverse @ together.mT
        left = torch.linalg.slogdet(truth @ truth.mT - explained + ridge).logabsdet  # [B, K]
        total = (left / 2 / SIDE**2).sum().to(probabilities.dtype)
        return Term(total, count_samples(labels))


def extract_regions(maps: Tensor) -> Tensor:  # [B, K, H, W] -> [B, K, 9, N]
    """The numbers of each region, less their mean over the image; in float64, because what is left of the truth is small."""
    reduced = F.max_pool2d(maps, SIDE, padding=SIDE // 2)
    vectors = F.unfold(reduced, SIDE).view(*maps.shape[:2], SIDE**2, -1).double()
    return vectors - vectors.mean(3, keepdim=True)
