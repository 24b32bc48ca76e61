"""Keeps what networks learn: checkpoints, and the files and names of other projects. Imports families, nn, config, system."""
