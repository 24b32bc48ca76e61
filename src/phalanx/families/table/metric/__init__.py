"""Metrics of tables."""

from phalanx.families.table.metric.judge import TableMetric
from phalanx.families.table.metric.teds import teds

__all__ = ['TableMetric', 'teds']
