"""Distributed training: collectives, gradients, batch norm, sums over a step, heartbeats. Imports system."""
