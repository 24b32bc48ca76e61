"""Images with texts in shards of WebDataset (tar) or MosaicML Streaming (MDS)."""

from pathlib import Path

from phalanx.data import shards
from phalanx.data.folders import check_folder
from phalanx.data.samples import Draw, Split
from phalanx.families.recognition.data.source import Source, TextImage

IMAGE, TEXT = 0, 1  # columns


class Shards:
    """Images and texts in shards below `root`.

    `train`, `eval`: a folder of .tar files or MDS shards, or names of tar files with `*` or `{000..123}`. `image`, `text`: the
    field (suffix, column) of each, `;` between alternatives.
    """

    def __init__(
        self,
        *,
        root: Path,
        train: str = 'train',
        eval: str = 'val',
        image: str = 'jpg;jpeg;png;webp;image',
        text: str = 'txt;text;transcript;label',
    ) -> None:
        self.root, self.places, self.fields = root, {'train': train, 'eval': eval}, {'image': image, 'text': text}

    def split(self, split: Split) -> Source:
        """Open the shards of a split. Raises FileNotFoundError and ValueError."""
        check_folder(self.root)
        return ShardTexts(shards.open_shards(self.root, self.places[split], self.fields))


class ShardTexts:
    """Source of the images and texts in shards."""

    def __init__(self, opened: shards.Shards) -> None:
        self.shards, self.notes = opened, opened.notes

    def __len__(self) -> int:
        return len(self.shards)

    def check_files(self) -> None:
        """Do nothing: opening the shards has found them."""

    def digest(self) -> bytes:
        return self.shards.digest()

    def name(self, index: int) -> str:
        return str(self.shards.label(index, IMAGE))

    def files(self, draw: Draw) -> list[str]:
        return [str(self.shards.file(draw.index))]

    def read(self, draw: Draw) -> TextImage:
        """Return image and text. Raises SampleError."""
        return self.shards.image(draw.index, IMAGE), self.shards.text(draw.index, TEXT)
