"""Result files named after their image: `street.json` and `street_overlay.jpg` of `street.png`."""

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import PIL.Image

from phalanx.data.samples import Image, SampleError
from phalanx.system.buckets import StorePath
from phalanx.system.disk import write_atomically
from phalanx.system.errors import RequestError

Write = Callable[[Any, Image, Path], list[Path]]  # (result, its image, a path without suffix) -> files written
WriteLabels = Callable[[Any, Image, Path, Path], list[Path]]  # the same, with the file of the image


def write_text(stem: Path, ending: str, text: str) -> list[Path]:
    """Write `text` to the file named `stem` + `ending`, and return the file. Raises OSError."""
    file = stem.with_name(f'{stem.name}{ending}')
    write_atomically(file, text.encode())
    return [file]


def write_new(file: Path, content: bytes) -> list[Path]:
    """Write a file that people work on, and return it. Raises OSError, and SampleError if it exists with other content."""
    if file.exists() and file.read_bytes() != content:
        raise SampleError(f'{file}: exists and may have been corrected; remove it, or name another folder')
    write_atomically(file, content)
    return [file]


def write_picture(stem: Path, ending: str, image: Image | PIL.Image.Image) -> list[Path]:
    """Write an image to the file named `stem` + `ending`, in the format of `ending`. Raises OSError."""
    file = stem.with_name(f'{stem.name}{ending}')
    write_atomically(file, encode_picture(image, file.suffix))
    return [file]


def encode_picture(image: Image | PIL.Image.Image, suffix: str) -> bytes:
    """Encode an image in the format of files with this suffix."""
    picture = image if isinstance(image, PIL.Image.Image) else PIL.Image.fromarray(image)
    # In memory first: Pillow does not notice that a disk took a part of a JPEG file alone.
    encoded = io.BytesIO()
    picture.save(encoded, format=PIL.Image.registered_extensions()[suffix], quality=92)  # ignored by lossless formats
    return encoded.getvalue()


def write_crop(stem: Path, ending: str, image: Image, box: Sequence[float]) -> list[Path]:
    """Write the part of an image within a box (xyxy, pixels); no file if it is empty. Raises OSError."""
    # Outwards to whole pixels, so that no part of the box is lost.
    (x0, y0), (x1, y1) = map(math.floor, box[:2]), map(math.ceil, box[2:])
    cut = image[y0:y1, x0:x1]
    return write_picture(stem, ending, cut) if cut.size else []


def picture_writer(draw: Callable[[Image, Any], Image], ending: str) -> Write:
    """Return a writer of the pictures that `draw` makes of images and their results."""
    return lambda result, image, stem: write_picture(stem, ending, draw(image, result))


def write_json(results: Sequence[Any], image: Image, stem: Path) -> list[Path]:
    """Write a list of results, dataclasses, as JSON with their fields."""
    return write_text(stem, '.json', json.dumps([asdict(result) for result in results], indent=1))


@dataclass(frozen=True)
class Writers:
    """Functions that turn results into pictures and files, by the names of `phalanx predict --save`."""

    draw: Callable[[Image, Any], Image]  # image, result -> image with the result on or beside it, [h, w, 3] RGB
    formats: Mapping[str, Write]
    default: Sequence[str]  # formats without --save
    labels: Mapping[str, WriteLabels] = field(default_factory=dict)  # formats of annotation tools, which open the image, too

    def check(self, ways: Sequence[str]) -> None:
        """Raise RequestError if `--save` names an unknown format, or two whose files have the same name."""
        if unknown := [way for way in ways if way not in (*self.formats, *self.labels)]:
            raise RequestError(f'--save: {unknown[0]!r} is not one of {", ".join((*self.formats, *self.labels))}')
        if {'json', 'labelme'} <= {*ways}:
            raise RequestError('--save: json and labelme are files of the same name; write them to two folders')

    def are_labels(self, ways: Sequence[str]) -> bool:
        """True if all formats are those of annotation tools, whose files lie beside the images."""
        return bool(ways) and all(way in self.labels for way in ways)

    def write(self, result: Any, image: Image, stem: Path, ways: Sequence[str] = (), file: Path | None = None) -> list[Path]:
        """Write the result of one image as `stem`.* in the formats `ways`, and return the files. Raises OSError.

        For annotation tools, an image of a bucket is copied beside its labels, and one that has no file of its own (`file` is
        None: a frame, a page) is written there as `stem`.jpg. Raises SampleError where such a file exists with other content.
        """
        files = [one for way in ways or self.default if way in self.formats for one in self.formats[way](result, image, stem)]
        if not (labels := [self.labels[way] for way in ways if way in self.labels]):
            return files
        if file is None:
            (file,) = write_new(stem.with_name(f'{stem.name}.jpg'), encode_picture(image, '.jpg'))
            files.append(file)
        elif isinstance(file, StorePath):
            (file,) = write_new(stem.with_name(file.name), file.read_bytes())
            files.append(file)
        return files + [one for write in labels for one in write(result, image, stem, file)]
