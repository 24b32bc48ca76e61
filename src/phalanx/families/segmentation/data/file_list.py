"""File lists in the format of PaddleSeg and CamVid: one image and its label map per line."""

from collections.abc import Iterator
from pathlib import Path

from phalanx.data.bands import Bands
from phalanx.data.folders import Problems, check_folder, check_inside, read_class_names, read_lines
from phalanx.data.samples import Split
from phalanx.families.segmentation.data.pairs import Pairs, identity_table


class FileList:
    """Images and label maps listed in one file per split, with paths relative to `root`.

    Label maps hold class ids, and 255 for void.

    `classes`: class names in the order of their ids, or a file below `root` with one name per line. `separator`: between image
    and label map; a tab allows spaces in paths. `bands`: of the images, if they are not RGB. Raises FileNotFoundError and
    ValueError.
    """

    def __init__(
        self,
        *,
        root: Path,
        train: str = 'train.txt',
        eval: str = 'val.txt',
        classes: str | tuple[str, ...] = 'classes.txt',
        separator: str = ' ',
        bands: Bands | None = None,
    ) -> None:
        self.root, self.lists, self.separator, self.bands = root, {'train': train, 'eval': eval}, separator, bands
        self.class_names = read_class_names(classes, root)
        self.ids = identity_table(len(self.class_names))

    def split(self, split: Split) -> Pairs:
        check_folder(self.root)
        path, problems = self.root / self.lists[split], Problems()

        def read_pairs() -> Iterator[tuple[str, str]]:
            for number, line in read_lines(path):
                with problems:
                    yield self._pair(line, f'{path}:{number}')

        count = len(self.class_names)
        origin = f': data.classes names {count} class{"es" * (count != 1)}'
        pairs = Pairs(self.root, read_pairs(), self.ids, origin, [path], self.bands)
        problems.check()
        return pairs

    def _pair(self, line: str, where: str) -> tuple[str, str]:
        """Return image and label map of a line. Lists are not trusted: paths outside the data set are refused."""
        # Exactly two fields: a path with the separator in it would be split silently.
        fields = [field.strip() for field in line.strip().split(self.separator)]
        if len(fields) != 2 or not all(fields):
            raise ValueError(
                f'{where}: expected an image and a label map with {self.separator!r} between them, got {line!r}; '
                'set data.separator if they are separated differently'
            )
        image, labels = (check_inside(field, self.root, where) for field in fields)
        return image, labels
