"""Label files, as PaddleOCR has them: a line names an image and says what is written in it."""

from pathlib import Path

from phalanx.data.folders import Problems, check_folder, check_inside, lines_of
from phalanx.data.listed import Listed, Packed
from phalanx.data.mixing import Shares, shares_of
from phalanx.data.samples import Split
from phalanx.families.recognition.data.source import Source


class LabelFiles:
    """Images and their texts from label files, whose lines are `path<TAB>text`; files and paths are relative to `root`.

    `train_shares`: how much of each training file an epoch takes, 1 being all of it (`ratio_list` of PaddleOCR); all 1 when
    there are none.
    """

    def __init__(
        self,
        *,
        root: Path,
        train: tuple[str, ...] = ('rec_gt_train.txt',),
        eval: tuple[str, ...] = ('rec_gt_test.txt',),
        train_shares: tuple[float, ...] = (),
        separator: str = '\t',
    ) -> None:
        self.root, self.files, self.separator = root, {'train': train, 'eval': eval}, separator
        self.shares = {'train': shares_of(train, train_shares, 'training files'), 'eval': (1.0,) * len(eval)}

    def split(self, split: Split) -> Source:
        check_folder(self.root)
        return Shares([self._listed(self.root / file) for file in self.files[split]], self.shares[split])

    def _listed(self, path: Path) -> Listed[str]:
        """The samples that one label file names. Raises FileNotFoundError, and ValueError with everything that is wrong."""
        pairs: list[tuple[str, str]] = []
        problems = Problems()
        for number, line in lines_of(path):
            with problems:
                pairs.append(split_line(line, self.root, f'{path}:{number}', self.separator))
        problems.check()
        return Listed(self.root, Packed([file for file, _ in pairs]), Packed([text for _, text in pairs]))


def split_line(line: str, root: Path, where: str, separator: str) -> tuple[str, str]:
    """Path and text of a line; what comes after another separator is left out. Raises ValueError, beginning with `where`."""
    path, found, rest = line.removesuffix('\r').partition(separator)
    if not found or not path:
        raise ValueError(
            f'{where}: expected an image and its text with {separator!r} between them, got {line!r}; '
            'data.separator says what stands between'
        )
    return check_inside(path, root, where), rest.split(separator)[0]
