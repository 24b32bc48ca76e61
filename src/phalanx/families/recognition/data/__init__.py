"""Data sets of recognition: each gives a Source of images with their texts for each split.

To add one: a file here with a class whose keyword-only parameters are the options of `data:` in a recipe, and a line in PARTS
(mixture.py). To construct it reads nothing, so that a trained run works where its images are not; `split` looks for every file,
so that a missing one is reported before training starts.
"""

from phalanx.families.recognition.data.mixture import PARTS, Mixture
from phalanx.families.recognition.data.source import Data, Source

DATA = {**PARTS, 'mixture': Mixture}

__all__ = ['DATA', 'Data', 'Source']
