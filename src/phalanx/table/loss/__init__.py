"""Losses of tables, as PaddleOCR's SLALoss has them. Each gives a Term.

Shapes: B batch, K tokens of the vocabulary, L steps: as many as the longest table of the whole step has tokens.
"""

from phalanx.table.loss.location import LOCATION_LOSSES, LocationLoss
from phalanx.table.loss.structure import structure_loss

__all__ = ['LOCATION_LOSSES', 'LocationLoss', 'structure_loss']
