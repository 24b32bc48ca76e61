"""Digit scenes: the data set that comes with the package, drawn on demand, for all families."""

from phalanx.scenes.scenes import DIGITS, EDGE, Scene, scene

__all__ = ['DIGITS', 'EDGE', 'Scene', 'scene']
