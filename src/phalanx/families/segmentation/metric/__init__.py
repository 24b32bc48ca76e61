"""Metrics of segmentation."""

from phalanx.families.segmentation.metric.confusion import Confusion

__all__ = ['Confusion']
