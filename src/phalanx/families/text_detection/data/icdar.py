"""ICDAR 2015, incidental scene text: one label file per image, in a separate folder.

Karatzas et al., ICDAR 2015 Competition on Robust Reading.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phalanx.data.folders import Problems, read_text
from phalanx.data.texts import has_column, parse_icdar
from phalanx.families.text_detection.data.source import LabelFilePerImage, Points


@dataclass(frozen=True, kw_only=True)
class Icdar2015(LabelFilePerImage):
    """Images `NAME.jpg` of a folder and their texts in `gt_NAME.txt`, with lines `x1,y1,x2,y2,x3,y3,x4,y4,text`.

    Folders are relative to `root`; the defaults are the names of ICDAR's archives. Texts `###` are ignored. A column with the
    script before the text, as in MLT 2017 and 2019, is left out.
    """

    train_images: str = 'ch4_training_images'
    train_labels: str = 'ch4_training_localization_transcription_gt'
    eval_images: str = 'ch4_test_images'
    eval_labels: str = 'Challenge4_Test_Task1_GT'

    def read_pairs(self, labels: Path, stem: str, problems: Problems) -> list[tuple[Points, str]]:
        """Return outlines and transcriptions; faulty lines go to `problems`. Raises FileNotFoundError."""
        file, pairs = labels / f'gt_{stem}.txt', []
        lines = read_text(file).split('\n')
        column = has_column(lines)
        for number, line in enumerate(lines, 1):
            if line.strip():
                with problems:
                    one = parse_icdar(line, f'{file}:{number}', column=column)
                    pairs.append((np.array(one.points, np.float32), one.text))
        return pairs
