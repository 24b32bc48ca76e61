"""Metrics of recognition."""

from phalanx.families.recognition.metric.reading import ReadingAccuracy

METRICS = {'reading': ReadingAccuracy}

__all__ = ['METRICS', 'ReadingAccuracy']
