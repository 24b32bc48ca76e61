"""Semantic connectivity learning loss: agreement of predicted and true connected components. Shapes: B batch, K classes."""

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
    """Mean over images of 1 - connectivity, itself a mean over the classes of the image, as in PaddleSeg.

    Chu et al., PP-HumanSeg, https://arxiv.org/abs/2112.07146. The connectivity of a class is the sum over its true components
    of the mean IoU with the predicted components that overlap it, divided by the number of true components plus that of
    predicted ones without any overlap. A class with ground truth but no prediction costs 1 plus its share of the pixels.

    As in PaddleSeg, this term has no gradient, since it is computed from the argmax: it is a number to monitor, and training is
    the same without it. PaddleSeg also weights a predicted pixel of class k by k, so that class 0 always costs 1; this is
    reproduced, so that the numbers agree.

    `most`: with more than twice as many predicted as true components, each including the background, only the first `most - 1`
    are used. Components are 8-connected, as in OpenCV. Each image is evaluated by itself, so the result does not depend on how
    the batch is split. Raises ValueError for a `most` below 1.
    """

    most: int = 10

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f'most is {self.most}; it counts the background, so it must be at least 1')

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Term:  # [B, K, H, W], [B, H, W]
        # Connected components are computed by OpenCV, on the host.
        predicted, true = logits.argmax(1).cpu().numpy(), labels.cpu().numpy()
        costs = [self._cost(*image) for image in zip(predicted, true, strict=True)]
        zero = 0 * at_least_float32(logits).sum()  # a zero gradient: every parameter must have one, or DDP waits
        return Term(zero + sum(costs), count_samples(labels))

    def _cost(self, predicted: npt.NDArray[np.int64], true: npt.NDArray[np.int64]) -> float:
        """Return the cost of an image; 0 if all of it is void."""
        # Classes that are only predicted cost nothing, as in PaddleSeg.
        classes = [label for label in np.unique(true).tolist() if label != VOID]
        costs = [self._cost_of_class(predicted == label, true == label, label) for label in classes]
        return sum(costs) / max(len(costs), 1)

    def _cost_of_class(self, predicted: Mask, true: Mask, label: int) -> float:
        """Return 1 - connectivity of one class; component 0 is its background."""
        (guesses, guess_at), (truths, truth_at) = (cv2.connectedComponents(mask.astype(np.uint8)) for mask in (predicted, true))
        # As in PaddleSeg; noisy predictions can have thousands of components.
        if guesses > 2 * truths:
            guesses = min(guesses, self.most)
        if guesses == 1:
            return 1 + float((true & ~predicted).mean())
        guess_at[guess_at >= guesses] = 0
        # Pixels of each pair (true component, predicted component), from which all IoUs follow.
        pixels = np.bincount((truth_at * guesses + guess_at).ravel(), minlength=truths * guesses).reshape(truths, guesses)
        # IoU = common / (predicted + true - common); with PaddleSeg's weight k of predicted pixels.
        common = label * pixels[1:, 1:]
        ious = common / (label * pixels.sum(0)[1:] + pixels.sum(1)[1:, None] - common)  # [true, predicted components]
        overlap = ious > 0
        means = ious.sum(1) / overlap.sum(1).clip(min=1)
        return float(1 - means.sum() / (len(ious) + (~overlap.any(0)).sum()))
