"""Metrics of tables."""

from phalanx.families.table.metric.table_metric import TableMetric
from phalanx.families.table.metric.teds import teds

METRICS = {'teds': TableMetric}

__all__ = ['METRICS', 'TableMetric', 'teds']
