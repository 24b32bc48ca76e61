"""Phalanx trains vision models on one device or many machines with one command, and gives the same result on each."""

__version__ = '0.1.0'
