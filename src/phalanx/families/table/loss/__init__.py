"""Losses of tables, those of PaddleOCR's SLALoss: called with the output of a network and its targets, they give Terms."""

from typing import Protocol

from torch import Tensor

from phalanx.families.table.loss.location import L1, SmoothL1
from phalanx.families.table.loss.structure import Structure
from phalanx.families.table.loss.targets import Targets as Targets
from phalanx.families.table.output import TableOutput
from phalanx.families.task import Loss


class TableLoss(Protocol):
    """What every loss of tables is."""

    def __call__(self, outputs: TableOutput, targets: Targets) -> Loss: ...
    def weights(self, targets: Targets) -> dict[str, Tensor]:
        """The weights [] (float64) of its Terms, which the targets alone determine."""


LOSSES: dict[str, type[TableLoss]] = {'structure': Structure, 'smooth_l1': SmoothL1, 'l1': L1}
