"""Images with label maps in shards of WebDataset (tar) or MosaicML Streaming (MDS)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.data.folders import check_folder, read_class_names
from phalanx.data.image import LabelMap
from phalanx.data.samples import Draw, Image, Split
from phalanx.families.segmentation.data.pairs import Pairs, identity_table

if TYPE_CHECKING:
    from phalanx.data import shards

IMAGE, LABELS = 0, 1  # columns


class Shards:
    """Images and label maps in shards below `root`. Label maps hold class ids, and 255 for void.

    `train`, `eval`: a folder of .tar files or MDS shards, or names of tar files with `*` or `{000..123}`. `image`, `labels`:
    the field (suffix, column) of each, `;` between alternatives. `classes`: class names in the order of their ids, or a file
    below `root` with one name per line.
    """

    def __init__(
        self,
        *,
        root: Path,
        train: str = 'train',
        eval: str = 'val',
        classes: str | tuple[str, ...] = 'classes.txt',
        image: str = 'jpg;jpeg;png;webp;image',
        labels: str = 'seg.png;mask.png;labels.png;png;labels;label;mask',
    ) -> None:
        self.root, self.places, self.fields = root, {'train': train, 'eval': eval}, {'image': image, 'labels': labels}
        self.class_names = read_class_names(classes, root)
        self.ids = identity_table(len(self.class_names))

    def split(self, split: Split) -> Pairs:
        """Open the shards of a split. Raises FileNotFoundError and ValueError."""
        from phalanx.data import shards  # here: other data do not need it

        check_folder(self.root)
        opened = shards.open_shards(self.root, self.places[split], self.fields)
        return ShardPairs(self.root, opened, self.ids, f': data.classes names {len(self.class_names)}')


class ShardPairs(Pairs):
    """Source of the images and label maps in shards."""

    def __init__(self, root: Path, opened: shards.Shards, ids: LabelMap, origin: str) -> None:
        super().__init__(root, (), ids, origin)
        self.shards, self.notes = opened, opened.notes

    def __len__(self) -> int:
        return len(self.shards)

    def check_files(self) -> None:
        """Do nothing: opening the shards has found them."""

    def digest(self) -> bytes:
        return self.shards.digest()

    def files(self, draw: Draw) -> list[str]:
        return [str(self.shards.file(draw.index))]

    def path(self, index: int, column: int) -> Path:
        return self.shards.label(index, column)

    def image(self, index: int) -> Image:
        return self.shards.image(index, IMAGE)

    def values(self, index: int) -> LabelMap:
        return self.shards.label_map(index, LABELS)
