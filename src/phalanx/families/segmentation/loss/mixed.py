"""Several losses of one output."""

from functools import partial
from typing import Annotated

from phalanx.families.segmentation.loss.connectivity import SemanticConnectivity
from phalanx.families.segmentation.loss.cross_entropy import CrossEntropy
from phalanx.families.segmentation.loss.dice import Dice
from phalanx.families.segmentation.loss.lovasz import LovaszHinge, LovaszSoftmax
from phalanx.families.segmentation.loss.ohem import OhemCrossEntropy
from phalanx.families.segmentation.loss.pixel_loss import PixelLoss
from phalanx.families.segmentation.loss.rmi import RegionMutualInformation

PARTS = {
    'cross_entropy': CrossEntropy,
    'ohem': OhemCrossEntropy,
    'dice': Dice,
    'lovasz': LovaszSoftmax,
    'lovasz_hinge': LovaszHinge,
    'rmi': RegionMutualInformation,
    'semantic_connectivity': SemanticConnectivity,
}


class Mixed:
    """The sum of `losses`, each times its one of `coefficients`: each is a term of the step's loss.

    Each keeps to labels as they are: void pixels stay void. (In PaddleSeg, the losses after a Dice loss see class 0 there.)
    Raises ValueError when there are not as many coefficients as losses.
    """

    def __init__(self, *, losses: tuple[Annotated[partial[PixelLoss], PARTS], ...], coefficients: tuple[float, ...]) -> None:
        if len(losses) != len(coefficients):
            raise ValueError(f'there are {len(losses)} losses, but {len(coefficients)} coefficients')
        self.losses = [loss() for loss in losses]
        self.coefficients = coefficients
