"""Metrics of recognition."""

from phalanx.families.recognition.metric.reading import Comparison, ReadingAccuracy

__all__ = ['Comparison', 'ReadingAccuracy']
