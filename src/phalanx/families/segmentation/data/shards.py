"""Images with label maps in shards of WebDataset (tar) or MosaicML Streaming (MDS)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phalanx.data.folders import read_class_names
from phalanx.data.image import LabelMap
from phalanx.data.samples import Image, Split
from phalanx.data.shards import ShardData, ShardSource
from phalanx.data.shards import Shards as Opened
from phalanx.families.segmentation.data.pairs import Pairs, identity_table


@dataclass(kw_only=True)
class Shards(ShardData):
    """Images and label maps in shards below `root`. Label maps hold class ids, and 255 for void.

    `train`, `eval`: a folder of .tar files or MDS shards, or names of tar files with `*` or `{000..123}`. `image`, `labels`:
    the field (suffix, column) of each, `;` between alternatives. `classes`: class names in the order of their ids, or a file
    below `root` with one name per line.
    """

    labels: str = 'seg.png;mask.png;labels.png;png;labels;label;mask'
    classes: str | tuple[str, ...] = 'classes.txt'

    def __post_init__(self) -> None:
        self.class_names = read_class_names(self.classes, self.root)

    def split(self, split: Split) -> Pairs:
        """Open the shards of a split. Raises FileNotFoundError and ValueError."""
        ids = identity_table(len(self.class_names))
        origin = f': data.classes names {len(self.class_names)}'
        return ShardPairs(self.open(split, 'labels', self.labels), self.root, ids, origin)


class ShardPairs(ShardSource, Pairs):
    """Source of the images and label maps in shards."""

    def __init__(self, opened: Opened, root: Path, ids: LabelMap, origin: str) -> None:
        ShardSource.__init__(self, opened)
        Pairs.__init__(self, root, (), ids, origin)

    def path(self, index: int, column: int) -> Path:
        return self.shards.label(index, column)

    def image(self, index: int) -> Image:
        return self.shards.image(index, 0)

    def values(self, index: int) -> LabelMap:
        return self.shards.label_map(index, 1)
