"""Reading and checking of images and label maps in files."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import cv2
import numpy as np

from phalanx.data import samples
from phalanx.data.bands import Bands
from phalanx.data.folders import check_folder, check_present
from phalanx.data.image import LabelMap, read_image, read_labels, turned_hint
from phalanx.data.listed import Packed
from phalanx.data.samples import Draw, Image, SampleError
from phalanx.families.segmentation.labels import VOID

INVALID = 254  # marks label values without a class; hence at most 254 classes


class Pairs:
    """Source of images with label maps, both in files below `root`."""

    def __init__(
        self,
        root: Path,
        pairs: Iterable[tuple[str, str]],
        ids: LabelMap,
        origin: str = '',
        listings: Sequence[Path] = (),
        bands: Bands | None = None,
    ) -> None:
        """`pairs`: image and label map, relative to `root`; `ids`: lookup table of label values, from `label_table`; `origin`:
        end of the message about a value that is not in the table, with the reason why others are; `listings`: the text
        files that name the pairs; `bands`: those of the images, if they are not RGB."""
        self.root, self.ids, self.origin, self.listings, self.bands = root, ids, origin, listings, bands
        self._paths = Packed.of(chain.from_iterable(pairs))  # image, label map, image, ...

    def __len__(self) -> int:
        return len(self._paths) // 2

    def check_files(self) -> None:
        check_present(self.root, self._paths, listings=self.listings)

    def digest(self) -> bytes:
        return self._paths.digest()

    def name(self, index: int) -> str:
        return str(self.path(index, 0))

    def files(self, draw: Draw) -> list[str]:
        return [str(self.path(draw.index, column)) for column in (0, 1)]

    def path(self, index: int, column: int) -> Path:
        return self.root / self._paths[2 * index + column]

    def read(self, draw: Draw) -> tuple[Image, LabelMap]:
        index = draw.index
        image, values = self.image(index), self.values(index)
        if image.shape[:2] != values.shape:
            # Name the likeliest reason: EXIF rotation, or masks at another resolution.
            reason = turned_hint(self.path(index, 0), image.shape[:2], values.shape)
            sizes = [f'{width} x {height}' for height, width in (image.shape[:2], values.shape)]
            if not reason and has_same_ratio(image.shape, values.shape):
                reason = '; it is a scaled copy: `phalanx new` and `phalanx data prepare masks` resize it'
            raise SampleError(f'{self.path(index, 1)}: is {sizes[1]} pixels, but its image is {sizes[0]}{reason}')
        return image, self._classes(index, values)

    def labels(self, index: int) -> LabelMap:
        """Read the label map of a sample alone. Raises SampleError."""
        return self._classes(index, self.values(index))

    def image(self, index: int) -> Image:
        return read_image(self.path(index, 0)) if self.bands is None else self.bands.read(self.path(index, 0))

    def values(self, index: int) -> LabelMap:
        """Stored values of a label map."""
        return read_labels(self.path(index, 1))

    def _classes(self, index: int, values: LabelMap) -> LabelMap:
        # One lookup per pixel maps stored values to classes and reveals values without a class.
        labels: LabelMap = cv2.LUT(values, self.ids).astype(np.uint8, copy=False)
        if (labels == INVALID).any():
            invalid = [value for value in np.unique(values).tolist() if self.ids[value] == INVALID]
            raise SampleError(
                f'{self.path(index, 1)}: has pixels of value {_format_ranges(invalid)}; '
                f'allowed are {_format_ranges(np.flatnonzero(self.ids != INVALID).tolist())}{self.origin}; if such pixels are '
                'one more class, name it in data.classes'
            )
        return labels


def list_stems(folder: Path, pattern: str) -> list[str]:
    """Return the files in `folder` that match `pattern`, sorted, relative to it, without the suffix after the last `*`.

    Raises FileNotFoundError if there are none.
    """
    # A folder that is missing has another fix than one without matching files.
    check_folder(folder)
    suffix = pattern.rpartition('*')[2]
    stems = sorted(str(path.relative_to(folder)).removesuffix(suffix) for path in folder.glob(pattern))
    if not stems:
        raise FileNotFoundError(f'{folder}: holds no {pattern}')
    return stems


def check_stem(stem: str, where: Path) -> str:
    """Return `stem`. Raises ValueError if it would lead to another folder; the list `where` is not trusted."""
    if '/' in stem or '\\' in stem:
        raise ValueError(f'{where}: {stem} is not the name of an image')
    return stem


def has_same_ratio(size: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True if two sizes (height, width, ...) have the same aspect ratio, up to rounding to a pixel."""
    return abs(other[0] / size[0] - other[1] / size[1]) <= 1 / min(size[:2])


def label_table(meaning: Mapping[int, int]) -> LabelMap:
    """Return the lookup table [256] of label values: those in `meaning`, 255 as void by default, all others INVALID."""
    ids = np.full(256, INVALID, np.uint8)
    for value, label in {VOID: VOID, **meaning}.items():
        ids[value] = label
    return ids


def identity_table(num_classes: int) -> LabelMap:
    """Return the lookup table [256] of label maps that hold class ids. Raises ValueError for too many classes."""
    if num_classes > INVALID:
        raise ValueError(f'{num_classes} classes do not fit a label map of 8 bits, which holds up to {INVALID}')
    return label_table({number: number for number in range(num_classes)})


def _format_ranges(values: Sequence[int]) -> str:
    """Return numbers as ranges, `0 to 10, 255`."""
    # A range begins where the number before it is missing, and ends where the next one is.
    starts = [value for value in values if value - 1 not in values]
    ends = [value for value in values if value + 1 not in values]
    runs = [str(first) if first == last else f'{first} to {last}' for first, last in zip(starts, ends, strict=True)]
    return ', '.join(runs[:10]) + (' ...' if len(runs) > 10 else '')


Source = samples.Source[LabelMap]  # label maps [H, W]: class ids, VOID where pixels are ignored
Data = samples.DataOfClasses[Source]
