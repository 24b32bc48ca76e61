"""Drawn training data that needs no download: digit scenes, lines of text. Imports data."""
