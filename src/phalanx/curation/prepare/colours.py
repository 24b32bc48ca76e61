"""Label maps in colours: one image per image, with one colour per class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phalanx.curation.prepare.samples import AnnotationSet, Sample
from phalanx.data.checks import AnnotationError, check_size, size_of
from phalanx.data.samples import Image

SUFFIXES = ('.png', '.bmp', '.tif', '.tiff', '.jpg', '.jpeg', '.webp')
VOID_NAME = 'void'  # the name of a colour that is not a class
VOID_NAMES = (VOID_NAME, 'unlabelled', 'unlabeled', 'neutral')  # in files of other tools; neutral: Supervisely

Colour = tuple[int, int, int]


def pair_masks(masks: Path, images: Path) -> AnnotationSet:
    """Pair the masks below `masks` with the images of equal names and sizes below `images`."""
    found = AnnotationSet()
    of_stem = {path.relative_to(images).with_suffix(''): path for path in _pictures(images)}
    for mask in _pictures(masks):
        stem = mask.relative_to(masks).with_suffix('')
        with found.left_out.catch():
            if stem not in of_stem:
                raise AnnotationError(f'{mask}: there is no image {images / stem}.*')
            check_size(size_of(mask), of_stem[stem], f'{mask}')
            found.samples.append(Sample(of_stem[stem], mask=mask))
    return found


def read_colour_file(file: Path) -> dict[Colour, str]:
    """Read a file with lines `red green blue name`. Raises ValueError, naming the line."""
    colours: dict[Colour, str] = {}
    for number, line in enumerate(file.read_text(encoding='utf-8-sig').splitlines(), 1):
        if not line.strip() or line.lstrip().startswith('#'):
            continue
        fields = line.split(maxsplit=3)
        if len(fields) < 4 or not all(field.isdecimal() and int(field) < 256 for field in fields[:3]):
            raise ValueError(f'{file}:{number}: expected three numbers from 0 to 255 and a name, got {line.strip()!r}')
        _add(colours, (int(fields[0]), int(fields[1]), int(fields[2])), fields[3].strip(), f'{file}:{number}')
    if not colours:
        raise ValueError(f'{file}: names no colour')
    return colours


def parse_colours(words: Sequence[str]) -> dict[Colour, str]:
    """Parse words `name=#rrggbb`. Raises ValueError."""
    colours: dict[Colour, str] = {}
    for word in words:
        name, _, code = word.rpartition('=')
        digits = code.removeprefix('#')
        if not name or len(digits) != 6 or not set(digits.lower()) <= set('0123456789abcdef'):
            raise ValueError(f'--classes: expected NAME=#RRGGBB, got {word!r}')
        red, green, blue = bytes.fromhex(digits)
        _add(colours, (red, green, blue), name, '--classes')
    return colours


def _add(colours: dict[Colour, str], colour: Colour, name: str, where: str) -> None:
    if colour in colours:
        raise ValueError(f'{where}: {format_colour(colour)} is {colours[colour]!r} already, so it cannot be {name!r}')
    colours[colour] = name


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob('*') if path.suffix.lower() in SUFFIXES)


def count_colours(pixels: Image) -> tuple[list[Colour], npt.NDArray[np.intp], list[int]]:
    """Colours of an image [H, W, 3], the index of each pixel's colour [H, W], and the pixels per colour."""
    codes, place, counts = np.unique(pixels.astype(np.int32) @ (1 << 16, 1 << 8, 1), return_inverse=True, return_counts=True)
    colours = [(code >> 16, code >> 8 & 255, code & 255) for code in codes.tolist()]
    return colours, place.reshape(pixels.shape[:2]), counts.tolist()


def format_colour(colour: Colour) -> str:
    return f'#{colour[0]:02x}{colour[1]:02x}{colour[2]:02x}'
