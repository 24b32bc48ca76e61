"""Metrics of text detection."""

from phalanx.families.text_detection.metric.hmean import Hmean

__all__ = ['Hmean']
