"""Losses of tables, as PaddleOCR's SLALoss has them. Each gives a Term, whose weight is counted beside it.

Shapes: B batch, K tokens of the vocabulary, L steps: as many as the longest table of the whole step has tokens.
"""

from phalanx.families.table.loss.location import LOCATION_LOSSES, LocationLoss, count_of_boxes
from phalanx.families.table.loss.structure import count_of_tokens, structure_loss

__all__ = ['LOCATION_LOSSES', 'LocationLoss', 'count_of_boxes', 'count_of_tokens', 'structure_loss']
