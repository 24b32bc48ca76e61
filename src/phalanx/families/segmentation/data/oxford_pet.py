"""The Oxford-IIIT Pet Dataset: 7349 photographs of cats and dogs (Parkhi et al., Cats and Dogs, CVPR 2012)."""

from pathlib import Path

from phalanx.data.folders import check_folder, read_lines
from phalanx.data.samples import Split
from phalanx.families.segmentation.data.pairs import Pairs, check_stem, label_table


class OxfordPet:
    """Oxford-IIIT Pet in the layout of its two archives: images/*.jpg, annotations/trimaps/*.png, lists in annotations.

    Trimap values 1, 2, 3 become 0 (pet), 1 (background), 2 (border, not decided by the annotators).
    """

    def __init__(self, *, root: Path) -> None:
        self.root, self.class_names = root, ('pet', 'background', 'border')

    def split(self, split: Split) -> Pairs:
        check_folder(self.root)
        # The official split has no validation part: test is used for evaluation.
        path = self.root / 'annotations' / ('trainval.txt' if split == 'train' else 'test.txt')
        stems = [check_stem(line.split()[0], path) for _, line in read_lines(path)]  # name, class, species, breed
        pairs = [(f'images/{stem}.jpg', f'annotations/trimaps/{stem}.png') for stem in stems]
        return Pairs(self.root, pairs, label_table({1: 0, 2: 1, 3: 2}))
