"""Digit scenes: the data set that comes with the package, drawn on demand, for all families."""

from phalanx.data.scenes.scenes import DIGITS, EDGE, DigitScenes, Scene, Series, scene

__all__ = ['DIGITS', 'EDGE', 'DigitScenes', 'Scene', 'Series', 'scene']
