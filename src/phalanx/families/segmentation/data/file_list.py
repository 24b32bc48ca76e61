"""Lists of files, as PaddleSeg's custom data sets and CamVid have them: a line names an image and its label map."""

from pathlib import Path

from phalanx.data.folders import check_folder, check_inside, lines_of, names_from
from phalanx.data.samples import Split
from phalanx.families.segmentation.data.pairs import Pairs, identity_table


class FileList:
    """Pairs of files that a list for each split names, relative to `root`; label maps hold class ids, and 255 for void.

    `classes`: the names of the classes in order of their ids, or the file below `root` that has one in each line. `separator`
    stands between image and label map; a tab allows spaces in paths. Raises FileNotFoundError and ValueError.
    """

    def __init__(
        self,
        *,
        root: Path,
        train: str = 'train.txt',
        eval: str = 'val.txt',
        classes: str | tuple[str, ...] = 'classes.txt',
        separator: str = ' ',
    ) -> None:
        self.root, self.lists, self.separator = root, {'train': train, 'eval': eval}, separator
        self.class_names = names_from(classes, root)
        self.ids = identity_table(len(self.class_names))

    def split(self, split: Split) -> Pairs:
        check_folder(self.root)
        path = self.root / self.lists[split]
        return Pairs(self.root, [self._pair(line, f'{path}:{number}') for number, line in lines_of(path)], self.ids)

    def _pair(self, line: str, where: str) -> tuple[str, str]:
        """Image and label map of a line. A list is not trusted: it must not name files outside the data set."""
        fields = [field.strip() for field in line.strip().split(self.separator)]
        if len(fields) != 2 or not all(fields):
            raise ValueError(
                f'{where}: expected an image and a label map with {self.separator!r} between them, got {line!r}; '
                'data.separator says what stands between'
            )
        image, labels = (check_inside(field, self.root, where) for field in fields)
        return image, labels
