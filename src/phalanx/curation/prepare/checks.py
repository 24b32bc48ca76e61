"""The checks that readers of annotations share, and the error that they raise."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import PIL.Image

from phalanx.data.image import PILLOW_ERRORS, open_with_pillow, turned_hint
from phalanx.data.image import size_of as image_size

MOST = 1e9  # no coordinate is larger


class AnnotationError(Exception):
    """An annotation that cannot be used. Its message names the file, which part of it, and what is wrong."""


def parsed(text: str | bytes, where: object) -> Any:
    """What a text of JSON holds. Raises AnnotationError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AnnotationError(f'{where}: is not JSON: {error}') from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises AnnotationError."""
    try:
        content = parsed(path.read_bytes(), path)
    except OSError as error:
        raise AnnotationError(f'{path}: cannot be read: {error.strerror}') from None
    if not isinstance(content, dict):
        raise AnnotationError(f'{path}: expected an object, got {type(content).__name__}')
    return content


def member(owner: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """`owner[key]`. Raises AnnotationError when it is missing or of another kind."""
    value = owner.get(key) if isinstance(owner, dict) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        wanted = ' or '.join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise AnnotationError(f'{where}: {key}: expected {wanted}, got {shortened(value)}')
    return value


def number_in(text: str | None, where: str) -> float:
    """The number that `text` is. Raises AnnotationError, for NaN and infinity too."""
    try:
        value = float(text or '')
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise AnnotationError(f'{where}: {shortened(text)} is not a number')
    return value


def floats(values: object, count: int, where: str) -> list[float]:
    """`values`, a list of `count` finite numbers. Raises AnnotationError."""
    given = values if isinstance(values, list) else []
    if len(given) != count or not all(type(value) in (int, float) and abs(value) < MOST for value in given):
        raise AnnotationError(f'{where}: expected {count} numbers, got {shortened(values)}')
    return [float(value) for value in given]


def file_below(root: Path, folder: Path, name: str, where: str) -> Path:
    """The file `name` of `folder`, which lies below `root` as `folder` does. Raises AnnotationError when it does not."""
    path = Path(os.path.normpath(folder.relative_to(root) / name.replace('\\', '/')))
    if path.is_absolute() or path.parts[:1] == (os.pardir,):
        raise AnnotationError(f'{where}: {shortened(name)} lies outside {root}')
    if not (root / path).is_file():
        raise AnnotationError(f'{where}: {shortened(name)}: there is no such file')
    return root / path


@contextmanager
def decoded(image: Path) -> Iterator[PIL.Image.Image]:
    """The opened image. Raises AnnotationError for what Pillow raises, here or when the block reads its pixels."""
    try:
        with open_with_pillow(image) as picture:
            yield picture
    except PILLOW_ERRORS as error:
        raise AnnotationError(f'{image}: is not an image that can be decoded: {error}') from None


def size_of(image: Path) -> tuple[int, int]:
    """(width, height) of the upright image; the pixels themselves are not read. Raises AnnotationError."""
    try:
        return image_size(image)
    except PILLOW_ERRORS as error:
        raise AnnotationError(f'{image}: is not an image that can be decoded: {error}') from None


def check_size(said: tuple[Any, Any], image: Path, where: str) -> tuple[int, int]:
    """(width, height) of the image. Raises AnnotationError when the annotation says otherwise; it may say nothing (None)."""
    size = size_of(image)
    if said not in (size, (None, None)):
        raise AnnotationError(
            f'{where}: was made for {said[0]} x {said[1]} pixels, but {image} has {size[0]} x {size[1]}'
            + turned_hint(size, said)
        )
    return size


def shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:77]}...'
