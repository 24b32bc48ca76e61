"""ADE20K, the scene parsing benchmark of 2016: 20210 training and 2000 evaluation images (Zhou et al., CVPR 2017)."""

from pathlib import Path

from phalanx.data.class_lists import ADE20K_CLASSES
from phalanx.data.samples import Split
from phalanx.families.segmentation.data.pairs import Pairs, label_table, list_stems
from phalanx.families.segmentation.labels import VOID

CLASSES = ADE20K_CLASSES


class ADE20K:
    """ADE20K in the layout of the archive ADEChallengeData2016: images/{training,validation}/*.jpg, annotations/.../*.png.

    Annotation values 1 to 150 become 0 to 149; 0 (other objects) becomes void.
    """

    def __init__(self, *, root: Path) -> None:
        self.root, self.class_names = root, CLASSES

    def split(self, split: Split) -> Pairs:
        folder = 'training' if split == 'train' else 'validation'
        stems = list_stems(self.root / 'images' / folder, '*.jpg')
        # Images and label maps share their stems.
        pairs = [(f'images/{folder}/{stem}.jpg', f'annotations/{folder}/{stem}.png') for stem in stems]
        return Pairs(self.root, pairs, label_table({0: VOID} | {label + 1: label for label in range(len(CLASSES))}))
