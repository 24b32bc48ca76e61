"""Label files, as PaddleOCR has them: a line names an image and lists its texts as JSON."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.data.folders import Problems, check_folder, check_inside, lines_of
from phalanx.data.samples import Split
from phalanx.families.text_detection.data.source import Pages, Points, Texts, outline, texts_of


@dataclass(frozen=True, kw_only=True)
class LabelFiles:
    """Images and their texts from label files, whose lines are `path<TAB>[{"transcription": .., "points": [[x, y], ..]}, ..]`.

    Label files are relative to `root`, paths to `images`, a folder in it. Texts `###` and `*` are ignored.
    """

    root: Path
    train: tuple[str, ...] = ('train_label.txt',)
    eval: tuple[str, ...] = ('val_label.txt',)
    images: str = '.'

    def split(self, split: Split) -> Pages:
        check_folder(self.root)
        folder = self.root / self.images
        problems, paths, texts = Problems(), list[str](), list[Texts]()
        for file in self.train if split == 'train' else self.eval:
            for number, line in lines_of(self.root / file):
                with problems:
                    path, found = read_line(line, folder, f'{self.root / file}:{number}')
                    paths.append(path)
                    texts.append(found)
        problems.check()
        return Pages(folder, tuple(paths), tuple(texts))


def read_line(line: str, root: Path, where: str) -> tuple[str, Texts]:
    """The path and the texts of a line. Raises ValueError, beginning with `where`."""
    path, tab, rest = line.removesuffix('\r').partition('\t')
    if not tab:
        raise ValueError(f'{where}: expected an image and its texts as JSON with a tab between them, got {line[:80]!r}')
    try:
        listed = json.loads(rest)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{where}: what follows the tab is not JSON: {error}') from None
    if not isinstance(listed, list):
        raise ValueError(f'{where}: expected a list of texts, got {rest[:80]!r}')
    return check_inside(path, root, where), texts_of([entry(item, f'{where}: text {n}') for n, item in enumerate(listed, 1)])


def entry(item: Any, where: str) -> tuple[Points, str]:
    """Outline and transcription of a text. Raises ValueError, beginning with `where`."""
    if not isinstance(item, dict) or not isinstance(item.get('transcription'), str) or 'points' not in item:
        raise ValueError(f'{where}: expected {{"transcription": "..", "points": [[x, y], ..]}}, got {str(item)[:80]}')
    return outline(item['points'], f'{where}: points'), item['transcription']
