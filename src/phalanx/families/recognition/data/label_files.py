"""PaddleOCR label files: each line contains the path of an image and its text."""

from array import array
from collections.abc import Iterator
from pathlib import Path

from phalanx.data.folders import Problems, check_folder, check_inside, read_lines
from phalanx.data.listed import Listed, Packer, find_contradictions
from phalanx.data.mixing import Shares, check_shares
from phalanx.data.samples import Split
from phalanx.families.recognition.data.source import Source


class LabelFiles:
    """Images and texts from label files with lines `path<TAB>text`; files and paths are relative to `root`.

    `train_shares`: share of each training file that an epoch takes (`ratio_list` of PaddleOCR); default: 1, all of it.
    `separator`: text between path and text.
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
        self.shares = {'train': check_shares(train, train_shares, 'training files'), 'eval': (1.0,) * len(eval)}

    def split(self, split: Split) -> Source:
        """Read the label files of a split. Raises FileNotFoundError, and ValueError with all malformed lines of a file."""
        check_folder(self.root)
        return Shares([self._read_label_file(self.root / file) for file in self.files[split]], self.shares[split])

    def _read_label_file(self, path: Path) -> Listed[str]:
        """Return the samples of one label file. Raises FileNotFoundError, and ValueError with all malformed lines."""
        cut_off, problems, files, texts, paths = 0, Problems(), Packer(), Packer(), array('q')
        for number, line in read_lines(path):
            with problems:
                file, text = split_line(line, self.root, f'{path}:{number}', self.separator)
                files.append(file)
                texts.append(text)
                paths.append(hash(file))
                cut_off += line.count(self.separator) > 1
        problems.check()
        listed, truths, notes = files.pack(), texts.pack(), dict[str, int]()
        if cut_off:
            notes[f'lines of {path} have a second {self.separator!r}; what is behind it is not part of the text'] = cut_off
        contradicted, first = find_contradictions(paths, truths.__getitem__)
        if contradicted:
            notes[f'images of {path} have several lines with different texts, such as {listed[first]}'] = contradicted
        return Listed(self.root, listed, truths, notes, [path])


def known_texts(source: object) -> Iterator[str]:
    """Yield the texts of a source that has read them from label files; none of others."""
    for part in source.sources if isinstance(source, Shares) else (source,):
        if isinstance(part, Listed):
            yield from part.truths


def split_line(line: str, root: Path, where: str, separator: str) -> tuple[str, str]:
    """Return path and text of a line, without anything after a second separator. Raises ValueError that starts with `where`."""
    path, mark, rest = line.removesuffix('\r').partition(separator)
    if not mark or not path:
        raise ValueError(
            f'{where}: expected an image and its text with {separator!r} between them, got {line!r}; '
            'set data.separator if another one is used'
        )
    return check_inside(path, root, where), rest.split(separator)[0]
