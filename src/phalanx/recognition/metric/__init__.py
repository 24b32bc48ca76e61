"""Metrics of recognition."""

from phalanx.recognition.metric.reading import Comparison, ReadingAccuracy

__all__ = ['Comparison', 'ReadingAccuracy']
