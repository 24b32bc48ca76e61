"""Detection metrics: average precision over all images."""

from phalanx.families.detection.metric.coco import CocoAp
from phalanx.families.detection.metric.voc import VocAp

METRICS = {'coco': CocoAp, 'voc': VocAp}

__all__ = ['METRICS', 'CocoAp', 'VocAp']
