"""Checks shared by the annotation readers, and their error."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import PIL.Image

from phalanx.data.image import PILLOW_ERRORS, open_with_pillow, turned_hint
from phalanx.data.image import size_of as image_size
from phalanx.data.samples import SampleError
from phalanx.system.errors import LFS, POINTER

MOST = 1e9  # limit of coordinates
FRACTIONS = 'all boxes lie within one pixel: are they fractions of the image? This format has pixels'
LARGEST = 2**31  # pixels; larger numbers are mistakes
FLAGS = {
    **dict.fromkeys(('1', 'true', 'yes', 'y', 't'), True),
    **dict.fromkeys(('0', 'false', 'no', 'n', 'f', '', 'none', 'unspecified'), False),
}


class AnnotationError(ValueError):
    """Annotation that cannot be used; the message names file, place and problem."""


def check_pointer(data: bytes, where: object) -> None:
    """Raise AnnotationError for a pointer of Git LFS in the place of a file."""
    if data.startswith(LFS):
        raise AnnotationError(f'{where}: {POINTER}')


def parse_json(text: str | bytes, where: object) -> Any:
    """Parse JSON, as bytes in UTF-8, UTF-16 or UTF-32. Raises AnnotationError."""
    try:
        return json.loads(text)
    except UnicodeDecodeError as error:
        raise AnnotationError(f'{where}: is not UTF-8 text (byte {error.start}); save it as such') from None
    except (ValueError, RecursionError) as error:
        check_pointer(text if isinstance(text, bytes) else text[: len(LFS)].encode(), where)
        raise AnnotationError(f'{where}: is not JSON ({error!s:.200})') from None


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises AnnotationError."""
    try:
        content = parse_json(path.read_bytes(), path)
    except OSError as error:
        raise AnnotationError(f'{path}: cannot be read: {error.strerror}') from None
    if not isinstance(content, dict):
        raise AnnotationError(f'{path}: expected an object, got {type(content).__name__}')
    return content


def get_member(owner: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return `owner[key]`. Raises AnnotationError if it is missing or of another type."""
    value = owner.get(key) if isinstance(owner, dict) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        wanted = ' or '.join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise AnnotationError(f'{where}: {key}: expected {wanted}, got {shorten(value)}')
    return value


def parse_number(text: str | None, where: str) -> float:
    """Parse a finite number. Raises AnnotationError."""
    try:
        value = float(text or '')
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise AnnotationError(f'{where}: {shorten(text)} is not a number')
    return value


def check_floats(values: object, count: int, where: str) -> list[float]:
    """Return `values` if it is a list of `count` finite numbers. Raises AnnotationError."""
    given = values if isinstance(values, list) else []
    if len(given) != count or not all(type(value) in (int, float) and abs(value) < MOST for value in given):
        raise AnnotationError(f'{where}: expected {count} numbers, got {shorten(values)}')
    return [float(value) for value in given]


def parse_numbers(values: object, count: int, where: str, what: str) -> list[float]:
    """Parse a list of `count` numbers within LARGEST, which may be texts. Raises AnnotationError that names `what`."""
    items: list[Any] = values if isinstance(values, list) else [values]
    try:
        result = [float(value) for value in items]
    except (TypeError, ValueError, OverflowError):
        result = []
    if len(result) != count or [value for value in result if not abs(value) <= LARGEST]:  # NaN, too
        raise AnnotationError(f'{where}: expected {what}, got {_format_values(items) or "nothing"}')
    return result


def _format_values(values: list[Any]) -> str:
    """Values for a message; types of values without bounded length."""

    def is_short(value: object) -> bool:
        return value is None or isinstance(value, str | float) or (isinstance(value, int) and abs(value) <= LARGEST)

    return ' '.join(f'{value!s:.20}' if is_short(value) else type(value).__name__ for value in values[:10])


def are_fractions(boxes: Iterable[Sequence[float]]) -> bool:
    """True if all boxes, of which there are some, lie within a pixel: x0, y0, x1, y1 from 0 to 1."""
    are_within = (min(box) >= 0 and max(box) <= 1 for box in boxes)
    return next(are_within, False) and all(are_within)


def parse_flag(value: object, where: str) -> bool:
    """Parse a flag: a boolean, a number, or a text such as `0`, `false` or `Unspecified`; missing: False.

    Raises AnnotationError.
    """
    if value is None or type(value) in (bool, int, float):
        return bool(value)
    word = value.strip().lower() if isinstance(value, str) else None
    if word not in FLAGS:
        raise AnnotationError(f'{where}: expected 0 or 1, got {shorten(value)}')
    return FLAGS[word]


def find_file(root: Path, folder: Path, name: str, where: str) -> Path:
    """Find the file `name` relative to `folder`. Raises AnnotationError if it lies outside `root` or does not exist."""
    path = Path(os.path.normpath(folder.relative_to(root) / name.replace('\\', '/')))
    if path.is_absolute() or path.parts[:1] == (os.pardir,):
        raise AnnotationError(f'{where}: {shorten(name)} lies outside {root}')
    if not is_file(root / path):
        raise AnnotationError(f'{where}: {shorten(name)}: no such file')
    return root / path


def is_file(path: Path) -> bool:
    """True if the file exists; no file has a name that is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


@contextmanager
def open_image(image: Path) -> Iterator[PIL.Image.Image]:
    """Open an image. Raises AnnotationError for errors of Pillow, also those raised while the block reads pixels."""
    try:
        with open_with_pillow(image) as picture:
            yield picture
    except AnnotationError:
        raise
    except PILLOW_ERRORS as error:
        raise AnnotationError(f'{image}: is not an image that can be decoded: {error}') from None


def size_of(image: Path) -> tuple[int, int]:
    """(width, height) of the upright image, from its header. Raises AnnotationError."""
    try:
        return image_size(image)
    except PILLOW_ERRORS as error:
        if image.suffix.lower() in ('.tif', '.tiff'):  # Pillow opens no other bands than RGB
            from phalanx.data.bands import read_size  # here: trainings do without

            try:
                return read_size(image)
            except SampleError as reason:
                raise AnnotationError(str(reason)) from None
        raise AnnotationError(f'{image}: is not an image that can be decoded: {error}') from None


def check_unique(names: Iterable[str], where: str) -> None:
    """Raise AnnotationError, beginning with `where`, for a class name that occurs twice."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise AnnotationError(f'{where}: {repeated[0]!r} occurs twice; which of the classes is meant?')


def check_size(said: tuple[Any, Any], image: Path, where: str) -> tuple[int, int]:
    """Return (width, height) of the image. Raises AnnotationError if the annotation gives another size; None is no size."""
    size = size_of(image)
    if said not in (size, (None, None)):
        raise AnnotationError(
            f'{where}: was made for {said[0]} x {said[1]} pixels, but {image} has {size[0]} x {size[1]}'
            + turned_hint(image, size, said)
        )
    return size


def shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:77]}...'
