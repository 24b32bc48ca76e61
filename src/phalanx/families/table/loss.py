"""Table losses, those of PaddleOCR's SLALoss: callables of output and targets that return Terms.

Shapes: B tables, L decoding steps: the number of tokens of the longest table of the whole step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.outputs import Shape, check_fields
from phalanx.families.table.output import TableOutput
from phalanx.families.task import Loss, Term
from phalanx.nn.precision import at_least_float32


class Targets(NamedTuple):
    """The next token after each token, and its cell."""

    ids: Tensor  # int64 [B, L] tokens
    boxes: Tensor  # float32 [B, L, 4] of the cells, xyxy relative to width and height, or [B, L, 8] corners
    has_box: Tensor  # bool [B, L]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Mean cross-entropy of the structure tokens over all steps, padding after the end of shorter tables included.

    As in the original, which has no ignore index: the network learns to predict start tokens after the end.
    """

    def __call__(self, outputs: TableOutput, targets: Targets) -> Loss:
        logits = at_least_float32(outputs.logits).transpose(1, 2)  # [B, K, L]
        return {'structure': Term(F.cross_entropy(logits, targets.ids, reduction='sum'), self.weights(targets)['structure'])}

    def weights(self, targets: Targets) -> dict[str, Tensor]:
        return {'structure': targets.ids.new_full((), targets.ids.numel(), dtype=torch.float64)}


EPSILON = 1e-12  # added to the divisor per table: a step without boxes costs 0, not 0/0


@dataclass(frozen=True, kw_only=True)
class L1:
    """Mean over boxes of the L1 distance, summed over coordinates."""

    distance: ClassVar[Callable[..., Tensor]] = F.l1_loss

    def __call__(self, outputs: TableOutput, targets: Targets) -> Loss:
        # All steps are computed and those without a box masked: shapes must not depend on the targets.
        distances = at_least_float32(type(self).distance(outputs.boxes, targets.boxes, reduction='none'))  # [B, L, 4 or 8]
        total = (distances * targets.has_box[..., None].to(distances.dtype)).sum()
        return {'location': Term(total, self.weights(targets)['location'])}

    def weights(self, targets: Targets) -> dict[str, Tensor]:
        return {'location': targets.has_box.sum(dtype=torch.float64) + EPSILON * len(targets.has_box)}


@dataclass(frozen=True, kw_only=True)
class SmoothL1(L1):
    """Mean over boxes of the smooth L1 distance (half the square below 1), summed over coordinates, not averaged."""

    distance: ClassVar[Callable[..., Tensor]] = F.smooth_l1_loss


class TableLoss(Protocol):
    """Protocol of table losses."""

    def __call__(self, outputs: TableOutput, targets: Targets) -> Loss: ...
    def weights(self, targets: Targets) -> dict[str, Tensor]:
        """Return the weights [] (float64) of the Terms, which depend on the targets alone."""


LOSSES: dict[str, type[TableLoss]] = {'structure': Structure, 'smooth_l1': SmoothL1, 'l1': L1}
OURS = tuple(LOSSES.values())  # without those that plug-ins add


def locates_cells(losses: Sequence[tuple[TableLoss, float]]) -> bool:
    """True if a loss with a weight above 0 teaches anything besides the structure: the boxes of cells."""
    return any(coefficient for loss, coefficient in losses if not isinstance(loss, Structure))


def check_outputs(outputs: Any, losses: Iterable[TableLoss], targets: Targets, K: int) -> None:
    """Raise RunError unless `outputs`, which may be a plug-in's, have what those `losses` that are from here take.

    `K`: number of tokens.
    """
    own = [loss for loss in losses if type(loss) in OURS]
    shapes: dict[str, Shape] = {'logits': (*targets.ids.shape, K)} if own else {}
    if any(isinstance(loss, L1) for loss in own):
        shapes['boxes'] = targets.boxes.shape
    check_fields('training', outputs, shapes)
