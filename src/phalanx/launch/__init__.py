"""Starts ranks on torch.distributed.elastic, on one node or many, and ends them together. Imports parallel, config, system."""
