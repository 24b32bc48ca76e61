"""Region mutual information (RMI) loss.

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

SIDE = 3  # of a region, and of the preceding max pooling
RIDGE = 5e-4  # added to the diagonal of matrices before inversion, as in PaddleSeg
FLOOR = 1e-6  # added to probabilities, as in PaddleSeg


@dataclass(frozen=True, kw_only=True)
class RegionMutualInformation(PixelLoss):
    """Half the log-determinant of the posterior covariance of the truth given the probabilities, as in PaddleSeg.

    Zhao et al., Region Mutual Information Loss for Semantic Segmentation, https://arxiv.org/abs/1910.12037, without the
    cross-entropy that the paper adds; `mixed` adds it. Truth and probability (a sigmoid per class) are first max-pooled 3 x 3.
    A region is 3 x 3 such cells: a vector of nine values of truth, and one of probability. The posterior covariance is that of
    the truth over the regions of an image minus the part explained by a linear regression on the probabilities. The result is
    divided by nine, summed over classes and averaged over images. Each image is evaluated by itself, so the result does not
    depend on how the batch is split.
    """

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:  # [B, K, H, W], [B, H, W]
        probabilities = at_least_float32(logits).sigmoid()
        valid = (labels != VOID).unsqueeze(1)  # [B, 1, H, W]
        is_own = one_hot(labels, logits.shape[1])  # [B, K, H, W]
        # [B, K, 9, N] each, centred.
        truth, guess = extract_regions(is_own.to(probabilities.dtype)), extract_regions(probabilities * valid + FLOOR)
        ridge = RIDGE * torch.eye(SIDE**2, dtype=truth.dtype, device=truth.device)
        # Posterior covariance: cov(truth) - cov(truth, guess) cov(guess)^-1 cov(guess, truth).
        cross = truth @ guess.mT  # [B, K, 9, 9]
        explained = cross @ torch.linalg.inv_ex(guess @ guess.mT + ridge).inverse @ cross.mT
        # log det by slogdet: a product of nine small eigenvalues would underflow.
        log_det = torch.linalg.slogdet(truth @ truth.mT - explained + ridge).logabsdet  # [B, K]
        total = (log_det / 2 / SIDE**2).sum().to(probabilities.dtype)
        return Term(total, count_samples(labels))


def extract_regions(maps: Tensor) -> Tensor:  # [B, K, H, W] -> [B, K, 9, N]
    """Return the vector of each region minus their mean over the image; in float64, as the posterior covariance is small."""
    # Pooling in windows of stride SIDE keeps nine values per region at a ninth of the memory.
    reduced = F.max_pool2d(maps, SIDE, padding=SIDE // 2)
    vectors = F.unfold(reduced, SIDE).view(*maps.shape[:2], SIDE**2, -1).double()
    return vectors - vectors.mean(3, keepdim=True)
