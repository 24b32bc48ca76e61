"""Metrics of segmentation."""

from phalanx.segmentation.metric.confusion import Confusion

__all__ = ['Confusion']
