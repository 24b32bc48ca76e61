"""Segmentation metrics."""

from phalanx.families.segmentation.metric.confusion import Confusion as Confusion

METRICS = {'confusion': Confusion}
