"""Pascal VOC 2012: 20 kinds of objects and the background (Everingham et al., The Pascal Visual Object Classes Challenge)."""

from pathlib import Path
from typing import Literal

from phalanx.data.folders import check_folder, read_lines
from phalanx.data.samples import Split
from phalanx.families.segmentation.data.pairs import Pairs, check_stem, identity_table

CLASSES = (
    'background',
    *('aeroplane', 'bicycle', 'bird', 'boat', 'bottle', 'bus', 'car', 'cat', 'chair', 'cow'),
    *('diningtable', 'dog', 'horse', 'motorbike', 'person', 'pottedplant', 'sheep', 'sofa', 'train', 'tvmonitor'),
)
YEAR = 'VOC2012'


class PascalVOC:
    """Pascal VOC 2012; `root` is the folder VOCdevkit of its archive. Evaluation uses the list val.

    `train`: the list to train on. trainaug adds to train the list aug, with the label maps of Hariharan et al. (Semantic
    Contours from Inverse Detectors, ICCV 2011) in SegmentationClassAug, as written by PaddleSeg's voc_augment.py.
    """

    def __init__(self, *, root: Path, train: Literal['train', 'trainval', 'trainaug'] = 'train') -> None:
        self.root, self.train, self.class_names = root, train, CLASSES

    def split(self, split: Split) -> Pairs:
        check_folder(self.root / YEAR)
        name = self.train if split == 'train' else 'val'
        # The two lists have their label maps in different folders.
        if name == 'trainaug':
            pairs = [*self._pairs('train', 'SegmentationClass'), *self._pairs('aug', 'SegmentationClassAug')]
        else:
            pairs = self._pairs(name, 'SegmentationClass')
        return Pairs(self.root / YEAR, pairs, identity_table(len(CLASSES)))

    def _pairs(self, name: str, folder: str) -> list[tuple[str, str]]:
        path = self.root / YEAR / 'ImageSets' / 'Segmentation' / f'{name}.txt'
        stems = [check_stem(line.strip(), path) for _, line in read_lines(path)]
        return [(f'JPEGImages/{stem}.jpg', f'{folder}/{stem}.png') for stem in stems]
