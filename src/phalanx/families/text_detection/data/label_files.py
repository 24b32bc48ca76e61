"""PaddleOCR label files: each line contains the path of an image and its texts as JSON."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phalanx.data.folders import Problems, check_folder, check_inside, read_lines
from phalanx.data.listed import Packer, find_contradictions
from phalanx.data.samples import Split
from phalanx.data.texts import parse_page
from phalanx.families.text_detection.data.source import PackedTexts, Pages, Texts, make_texts


@dataclass(frozen=True, kw_only=True)
class LabelFiles:
    """Images and texts from label files with lines `path<TAB>[{"transcription": .., "points": [[x, y], ..]}, ..]`.

    Label files are relative to `root`, paths in them to its folder `images`. Texts `###` and `*`, and those
    that PPOCRLabel marks as `difficult`, are ignored.
    """

    root: Path
    train: tuple[str, ...] = ('train_label.txt',)
    eval: tuple[str, ...] = ('val_label.txt',)
    images: str = '.'

    def split(self, split: Split) -> Pages:
        """Read the label files of a split. Raises FileNotFoundError, and ValueError with all malformed lines."""
        check_folder(self.root)
        folder = self.root / self.images
        files = [self.root / file for file in (self.train if split == 'train' else self.eval)]
        problems, paths, hashes = Problems(), Packer(), (array('q'), array('q'))

        def read_texts() -> Iterator[Texts]:
            for file in files:
                for number, line in read_lines(file):
                    with problems:
                        path, texts = read_line(line, folder, f'{file}:{number}')
                        paths.append(path)
                        hashes[0].append(hash(path))
                        hashes[1].append(hash(line))
                        yield texts

        texts = PackedTexts(read_texts())
        problems.check()
        listed, (contradicted, first) = paths.pack(), find_contradictions(hashes[0], hashes[1].__getitem__)
        what = 'pages have several lines with different texts, so those of one line are background for another; join them'
        notes = {f'{what} (such as {listed[first]})': contradicted} if contradicted else {}
        return Pages(folder, listed, texts, notes, files)


def read_line(line: str, root: Path, where: str) -> tuple[str, Texts]:
    """Return path and texts of a line. Raises ValueError that starts with `where`."""
    # The first tab ends the path; JSON escapes those in texts.
    path, tab, rest = line.removesuffix('\r').partition('\t')
    if not tab:
        raise ValueError(f'{where}: expected an image and its texts as JSON with a tab between them, got {line[:80]!r}')
    pairs = [(np.array(one.points, np.float32), one.text) for one in parse_page(rest, where)]
    return check_inside(path, root, where), make_texts(pairs)
