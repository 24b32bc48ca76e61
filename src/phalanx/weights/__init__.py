"""Weights: checkpoints, and the files and parameter names of other projects. Imports families, nn, config, system."""
