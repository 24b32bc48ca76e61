"""Segmentation data sets: class names, and per split a Source of images with label maps.

To add one: a file here with a class whose keyword-only parameters are the options of `data:` in a recipe, and a line in DATA.
The constructor reads nothing but the class names, so that a trained run works without its images; `split` reads the lists, and
`check_files` of the Source looks for every file, so that missing ones are reported before training starts.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from phalanx.data import mixing
from phalanx.families.segmentation.data.ade20k import ADE20K
from phalanx.families.segmentation.data.cityscapes import Cityscapes
from phalanx.families.segmentation.data.digit_scenes import DigitScenes
from phalanx.families.segmentation.data.file_list import FileList
from phalanx.families.segmentation.data.oxford_pet import OxfordPet
from phalanx.families.segmentation.data.pairs import Data, Source
from phalanx.families.segmentation.data.pascal_voc import PascalVOC
from phalanx.families.segmentation.data.shards import Shards


class Mixture(mixing.Mixture):
    """Several segmentation data sets as one."""

    def __init__(self, *, parts: tuple[Annotated[partial[Data], DATA], ...], train_shares: tuple[float, ...] = ()) -> None:
        super().__init__(parts, train_shares)


DATA = {
    'digit_scenes': DigitScenes,
    'file_list': FileList,
    'cityscapes': Cityscapes,
    'ade20k': ADE20K,
    'pascal_voc': PascalVOC,
    'oxford_pet': OxfordPet,
    'shards': Shards,
    'mixture': Mixture,
}

__all__ = ['DATA', 'Data', 'Source']
