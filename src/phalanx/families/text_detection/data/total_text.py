"""TotalText: outlines of curved words, one label file per image.

Ch'ng and Chan, Total-Text: A Comprehensive Dataset for Scene Text Detection and Recognition, ICDAR 2017.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phalanx.data.folders import Problems, read_text
from phalanx.data.texts import PageText, parse_total_text, parse_word
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


def read_matlab_file(file: Path) -> list[PageText]:
    """Return the words of a MATLAB file, whose `polygt` has one row per word: 'x:', xs, 'y:', ys, word, orientation.

    Raises ValueError for a damaged file and without scipy.
    """
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ValueError(
            f'{file}: MATLAB files need scipy: pip install "phalanx-vision[detr]", or use the annotations as text files'
        ) from None
    try:
        # Columns 1, 3 and 4: xs, ys and the word.
        rows = loadmat(file)['polygt'].tolist()
        parts = [(row[1].reshape(-1).tolist(), row[3].reshape(-1).tolist(), row[4].reshape(-1).tolist()) for row in rows]
    except Exception as error:  # noqa: BLE001 - scipy raises arbitrary errors for damaged files
        raise ValueError(f'{file}: is not a MATLAB file with words in `polygt`: {error!s:.200}') from None
    return [parse_word(*part, f'{file}: word {number}') for number, part in enumerate(parts, 1)]
