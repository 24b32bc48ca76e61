"""Semantic segmentation: one class for every pixel of an image."""
