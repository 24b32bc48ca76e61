"""Detection metrics: what was found on all images against what was there."""

from phalanx.families.detection.metric.coco import CocoAp
from phalanx.families.detection.metric.voc import VocAp

METRICS = {'coco': CocoAp, 'voc': VocAp}

__all__ = ['METRICS', 'CocoAp', 'VocAp']
