"""Starts rank processes on torch.distributed.elastic, and ends them together."""
