"""TotalText: outlines of curved words, one label file per image.

Ch'ng and Chan, Total-Text: A Comprehensive Dataset for Scene Text Detection and Recognition, ICDAR 2017.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phalanx.data.folders import Problems, read_text
from phalanx.data.texts import parse_total_text, read_matlab_file
from phalanx.families.text_detection.data.source import LabelFilePerImage, Points


@dataclass(frozen=True, kw_only=True)
class TotalText(LabelFilePerImage):
    """Images `NAME.jpg` of a folder and their words in `poly_gt_NAME.txt`, or else in `poly_gt_NAME.mat`.

    Folders are relative to `root`; the defaults are the names in the published archives. Each line of a text file is a word,
    `x: [[..]], y: [[..]], ornt: [u'c'], transcriptions: [u'word']`; it may be wrapped between numbers. MATLAB files need scipy.
    Words `#` are ignored.
    """

    train_images: str = 'Images/Train'
    train_labels: str = 'Groundtruth/Polygon/Train'
    eval_images: str = 'Images/Test'
    eval_labels: str = 'Groundtruth/Polygon/Test'

    def read_pairs(self, labels: Path, stem: str, problems: Problems) -> list[tuple[Points, str]]:
        """Return outlines and transcriptions; faults go to `problems`. Raises FileNotFoundError."""
        file = labels / f'poly_gt_{stem}.txt'
        matlab = file.with_suffix('.mat')
        with problems:
            is_matlab = matlab.is_file() and not file.is_file()
            words = read_matlab_file(matlab) if is_matlab else parse_total_text(read_text(file), file)
            return [(np.array(one.points, np.float32), one.text) for one in words]
        return []
