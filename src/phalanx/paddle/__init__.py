"""Configurations, weights and options of PaddleSeg, PaddleDetection and PaddleOCR. Imports families, nn, config, system."""
