"""Semantic connectivity: how well the connected areas that were predicted match the true ones. Shapes: B batch, K classes."""

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
from torch import Tensor

from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.loss.pixel_loss import PixelLoss, count_samples
from phalanx.families.task import Term
from phalanx.nn.precision import at_least_float32
from phalanx.parallel.step import WholeStep

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class SemanticConnectivity(PixelLoss):
    """The mean over images of 1 - connectivity, itself a mean over the classes of the image, as in PaddleSeg.

    Chu et al., PP-HumanSeg, https://arxiv.org/abs/2112.07146. The connectivity of a class is a sum over its true areas, of the
    mean IoU with those predicted areas that overlap one, divided by the number of true areas and of predicted ones that
    overlap none. A class that is true but nowhere predicted costs 1 and the share of its pixels in the image.

    In PaddleSeg this term is a number to look at: it is counted in the predicted classes, of which there is no gradient, so
    training is the same without it. It is so here. PaddleSeg also counts a predicted pixel of class k k times, so that class 0
    always costs 1; here too, so that the numbers agree.

    `most`: when more than twice as many areas are predicted as are true, the background counted as one of each, only the first
    `most - 1` are looked at. Areas are those of OpenCV, pixels that touch at a corner being of one. An image is taken by
    itself, so the cut of a batch does not matter. Raises ValueError for a `most` below 1.
    """

    most: int = 10

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f'most is {self.most}; it counts the background, so it must be at least 1')

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:  # [B, K, H, W], [B, H, W]
        predicted, true = logits.argmax(1).cpu().numpy(), labels.cpu().numpy()
        costs = [self._cost(*image) for image in zip(predicted, true, strict=True)]
        nothing = 0 * at_least_float32(logits).sum()  # the gradient: every parameter must have one, if it is zero
        return Term(nothing + sum(costs), count_samples(labels))

    def _cost(self, predicted: npt.NDArray[np.int64], true: npt.NDArray[np.int64]) -> float:
        """What an image costs; nothing when all of it is void."""
        classes = [label for label in np.unique(true).tolist() if label != VOID]
        costs = [self._cost_of_class(predicted == label, true == label, label) for label in classes]
        return sum(costs) / max(len(costs), 1)

    def _cost_of_class(self, predicted: Mask, true: Mask, label: int) -> float:
        (guesses, guess_at), (truths, truth_at) = (cv2.connectedComponents(mask.astype(np.uint8)) for mask in (predicted, true))
        if guesses > 2 * truths:
            guesses = min(guesses, self.most)
        if guesses == 1:
            return 1 + float((true & ~predicted).mean())
        guess_at[guess_at >= guesses] = 0
        pixels = np.bincount((truth_at * guesses + guess_at).ravel(), minlength=truths * guesses).reshape(truths, guesses)
        common = label * pixels[1:, 1:]
        ious = common / (label * pixels.sum(0)[1:] + pixels.sum(1)[1:, None] - common)  # [true areas, predicted areas]
        overlap = ious > 0
        means = ious.sum(1) / overlap.sum(1).clip(min=1)
        return float(1 - means.sum() / (len(ious) + (~overlap.any(0)).sum()))
