"""Metrics of segmentation."""

from phalanx.families.segmentation.metric.confusion import Confusion

METRICS = {'confusion': Confusion}

__all__ = ['METRICS', 'Confusion']
