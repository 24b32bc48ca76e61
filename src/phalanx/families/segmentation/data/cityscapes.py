"""Cityscapes: street scenes of 50 cities, 2048 x 1024, 19 classes (Cordts et al., CVPR 2016)."""

from pathlib import Path

from phalanx.data.class_lists import CITYSCAPES_CLASSES
from phalanx.data.image import LabelMap
from phalanx.data.samples import Split
from phalanx.families.segmentation.data.pairs import Pairs, identity_table, label_table, list_stems
from phalanx.families.segmentation.labels import VOID

CLASSES = CITYSCAPES_CLASSES
NUM_LABEL_IDS = 34
IMAGE, TRAIN_IDS, LABEL_IDS = '_leftImg8bit.png', '_gtFine_labelTrainIds.png', '_gtFine_labelIds.png'


class Cityscapes:
    """Cityscapes in the layout of its two archives: leftImg8bit/{train,val}/CITY/*.png and gtFine/{train,val}/CITY/*.png.

    Label maps are the `labelTrainIds` files of the official tool or, without them, the `labelIds` files of the archive.
    """

    def __init__(self, *, root: Path) -> None:
        self.root, self.class_names = root, tuple(CLASSES)

    def split(self, split: Split) -> Pairs:
        folder = 'train' if split == 'train' else 'val'
        stems = list_stems(self.root / 'leftImg8bit' / folder, f'*/*{IMAGE}')
        # The official tool writes labelTrainIds; one file tells whether it was run.
        has_train_ids = (self.root / 'gtFine' / folder / (stems[0] + TRAIN_IDS)).is_file()
        annotation, ids = (TRAIN_IDS, identity_table(len(CLASSES))) if has_train_ids else (LABEL_IDS, label_id_table())
        pairs = [(f'leftImg8bit/{folder}/{stem}{IMAGE}', f'gtFine/{folder}/{stem}{annotation}') for stem in stems]
        return Pairs(self.root, pairs, ids)


def label_id_table() -> LabelMap:
    """Return the lookup table [256] from `labelIds` values to classes."""
    classes = {number: label for label, number in enumerate(CLASSES.values())}
    return label_table(dict.fromkeys(range(NUM_LABEL_IDS), VOID) | classes)
