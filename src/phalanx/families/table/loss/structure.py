"""The cross-entropy of structure tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.table.loss.targets import Targets
from phalanx.families.table.output import TableOutput
from phalanx.families.task import Loss, Term
from phalanx.nn.precision import at_least_float32


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The mean cross-entropy over all steps, those after the end of a shorter table too: the original has no void token.

    So a short table costs less than a long one, and its network learns to say start tokens after its end.
    """

    def __call__(self, outputs: TableOutput, targets: Targets) -> Loss:
        logits = at_least_float32(outputs.logits).transpose(1, 2)  # [B, K, L]
        return {'structure': Term(F.cross_entropy(logits, targets.ids, reduction='sum'), self.weights(targets)['structure'])}

    def weights(self, targets: Targets) -> dict[str, Tensor]:
        return {'structure': targets.ids.new_full((), targets.ids.numel(), dtype=torch.float64)}
