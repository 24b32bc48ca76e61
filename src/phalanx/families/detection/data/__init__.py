"""Data sets of detection: each names its classes and gives a Source of images with boxes for each split.

To add one: a file here with a class whose keyword-only parameters are the options of `data:` in a recipe, and a line in DATA.
Its constructor reads no more than the names of the classes, so that a trained run works without its images. `split` reads the
annotations and the Source's `check_files` looks for every file, so that missing or malformed ones are reported before training
starts.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from phalanx.data import mixing
from phalanx.families.detection.data.coco import CocoJson, Objects365
from phalanx.families.detection.data.digit_scenes import DigitScenes
from phalanx.families.detection.data.shards import Shards
from phalanx.families.detection.data.source import Data, Objects, Source
from phalanx.families.detection.data.voc import PascalVOC
from phalanx.families.detection.data.yolo import YoloText


class Mixture(mixing.Mixture):
    def __init__(self, *, parts: tuple[Annotated[partial[Data], DATA], ...], train_shares: tuple[float, ...] = ()) -> None:
        super().__init__(parts, train_shares)


DATA = {
    'digit_scenes': DigitScenes,
    'coco': CocoJson,
    'objects365': Objects365,
    'pascal_voc': PascalVOC,
    'yolo': YoloText,
    'shards': Shards,
    'mixture': Mixture,
}

__all__ = ['DATA', 'Data', 'Objects', 'Source']
