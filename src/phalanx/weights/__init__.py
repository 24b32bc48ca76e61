"""Weights to start from: found by path, address or name, fetched once, read from archives, matched with a network."""
