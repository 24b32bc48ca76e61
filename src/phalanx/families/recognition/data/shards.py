"""Images with texts in shards of WebDataset (tar) or MosaicML Streaming (MDS)."""

from dataclasses import dataclass

from phalanx.data.samples import Draw, Split
from phalanx.data.shards import ShardData, ShardSource
from phalanx.families.recognition.data.source import Source, TextImage


@dataclass(kw_only=True)
class Shards(ShardData):
    """Images and texts in shards below `root`.

    `train`, `eval`: a folder of .tar files or MDS shards, or names of tar files with `*` or `{000..123}`. `image`, `text`: the
    field (suffix, column) of each, `;` between alternatives.
    """

    text: str = 'txt;text;transcript;label'

    def split(self, split: Split) -> Source:
        """Open the shards of a split. Raises FileNotFoundError and ValueError."""
        return ShardTexts(self.open(split, 'text', self.text))


class ShardTexts(ShardSource):
    """Source of the images and texts in shards."""

    def read(self, draw: Draw) -> TextImage:
        """Return image and text. Raises SampleError."""
        return self.shards.image(draw.index, 0), self.shards.text(draw.index, 1)
