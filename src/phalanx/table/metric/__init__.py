"""Metrics of tables."""

from phalanx.table.metric.judge import TableMetric
from phalanx.table.metric.teds import teds

__all__ = ['TableMetric', 'teds']
