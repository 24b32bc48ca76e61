"""Pages with texts in shards of WebDataset (tar) or MosaicML Streaming (MDS)."""

import re
from dataclasses import dataclass

import numpy as np

from phalanx.data.folders import Problems
from phalanx.data.samples import Draw, Image, Split
from phalanx.data.shards import ShardData, ShardSource
from phalanx.data.shards import Shards as Opened
from phalanx.data.texts import PageText, has_column, parse_icdar, parse_page
from phalanx.families.text_detection.data.source import PackedTexts, Texts, make_texts


@dataclass(kw_only=True)
class Shards(ShardData):
    """Images and their texts in shards below `root`.

    `train`, `eval`: a folder of .tar files or MDS shards, or names of tar files with `*` or `{000..123}`. `image`, `texts`: the
    field (suffix, column) of each, `;` between alternatives. Texts are a list as in PaddleOCR's label files,
    `[{"transcription": .., "points": [[x, y], ..]}, ..]`, or lines of ICDAR 2015, `x1,y1,x2,y2,x3,y3,x4,y4,text`.
    """

    texts: str = 'json;txt;texts;label;annotations'

    def split(self, split: Split) -> 'ShardPages':
        """Open the shards of a split. Raises FileNotFoundError, and ValueError with all malformed texts."""
        return ShardPages(self.open(split, 'texts', self.texts))


class ShardPages(ShardSource):
    """Source of the pages in shards."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened)
        problems = Problems()
        self.truths = PackedTexts(self._texts(index, problems) for index in range(len(opened)))
        problems.check()

    def _texts(self, index: int, problems: Problems) -> Texts:
        pairs, where = list[PageText](), str(self.shards.label(index, 1))
        with problems:
            text = self.shards.annotation(index, 1)
            if text.lstrip()[:1] in ('[', '{'):
                pairs = parse_page(text, where)
            else:
                lines = re.split(r'\r\n|\r|\n', text)
                column = has_column(lines)
                numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
                pairs = [parse_icdar(line, f'{where}:{number}', column=column) for number, line in numbered]
        return make_texts([(np.array(one.points, np.float32), one.text) for one in pairs])

    def digest(self) -> bytes:
        return super().digest() + self.truths.digest()

    def read(self, draw: Draw) -> tuple[Image, Texts]:
        """Raises SampleError."""
        return self.shards.image(draw.index, 0), self.truths[draw.index]
