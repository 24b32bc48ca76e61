"""Metrics of segmentation."""

from phalanx.families.segmentation.metric.confusion import Confusion as Confusion

METRICS = {'confusion': Confusion}
