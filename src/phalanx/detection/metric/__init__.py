"""Detection metrics: what was found on all images against what was there."""

from phalanx.detection.metric.coco import CocoAp
from phalanx.detection.metric.gathered import Detections
from phalanx.detection.metric.voc import VocAp

METRICS = {'coco': CocoAp, 'voc': VocAp}

__all__ = ['METRICS', 'CocoAp', 'Detections', 'VocAp']
