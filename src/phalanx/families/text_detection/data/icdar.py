"""ICDAR 2015, incidental scene text: a text file for each image, in a folder of their own.

Karatzas et al., ICDAR 2015 Competition on Robust Reading.
"""

from pathlib import Path

import numpy as np

from phalanx.data.folders import Problems, text_of
from phalanx.data.samples import Split
from phalanx.families.text_detection.data.source import Pages, Points, Texts, images_with_labels, is_number, texts_of


class Icdar2015:
    """Images of a folder, and for each `NAME.jpg` its texts in `gt_NAME.txt`, whose lines are `x1,y1,x2,y2,x3,y3,x4,y4,text`.

    Folders are relative to `root`, named as the archives that ICDAR gives out. The text `###` marks what is ignored.
    """

    def __init__(
        self,
        *,
        root: Path,
        train_images: str = 'ch4_training_images',
        train_labels: str = 'ch4_training_localization_transcription_gt',
        eval_images: str = 'ch4_test_images',
        eval_labels: str = 'Challenge4_Test_Task1_GT',
    ) -> None:
        self.root = root
        self.folders = {'train': (train_images, train_labels), 'eval': (eval_images, eval_labels)}

    def split(self, split: Split) -> Pages:
        images, labels = (self.root / folder for folder in self.folders[split])
        names, problems, texts = images_with_labels(images, labels), Problems(), list[Texts]()
        for name in names:
            file = labels / f'gt_{Path(name).stem}.txt'
            lines = [(number, line) for number, line in enumerate(text_of(file).splitlines(), 1) if line.strip()]
            pairs = []
            for number, line in lines:
                with problems:
                    pairs.append(read_line(line, f'{file}:{number}'))
            texts.append(texts_of(pairs))
        problems.check()
        return Pages(images, tuple(names), tuple(texts))


def read_line(line: str, where: str) -> tuple[Points, str]:
    """The corners [4, 2] and the text of a line. Raises ValueError, beginning with `where`."""
    *fields, text = line.split(',', 8)
    try:
        corners = [float(field) for field in fields]
    except ValueError:
        corners = []
    if len(corners) != 8 or not all(map(is_number, corners)):
        raise ValueError(f'{where}: expected x1,y1,x2,y2,x3,y3,x4,y4,text with places in pixels, got {line[:80]!r}')
    return np.array(corners, np.float32).reshape(4, 2), text
