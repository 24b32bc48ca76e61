"""Metrics of text detection."""

from phalanx.families.text_detection.metric.hmean import Hmean

METRICS = {'hmean': Hmean}

__all__ = ['METRICS', 'Hmean']
