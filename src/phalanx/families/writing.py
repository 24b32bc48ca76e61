"""Result files named after their image: `street.json` and `street_overlay.jpg` of `street.png`."""

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import PIL.Image

from phalanx.data.samples import Image
from phalanx.system.disk import write_atomically
from phalanx.system.errors import RequestError

Write = Callable[[Any, Image, Path], list[Path]]  # (result, its image, a path without suffix) -> files written


def write_text(stem: Path, ending: str, text: str) -> list[Path]:
    """Write `text` to the file named `stem` + `ending`, and return the file. Raises OSError."""
    file = stem.with_name(f'{stem.name}{ending}')
    write_atomically(file, text.encode())
    return [file]


def write_picture(stem: Path, ending: str, image: Image | PIL.Image.Image) -> list[Path]:
    """Write an image to the file named `stem` + `ending`, in the format of `ending`. Raises OSError."""
    file = stem.with_name(f'{stem.name}{ending}')
    picture = image if isinstance(image, PIL.Image.Image) else PIL.Image.fromarray(image)
    # In memory first: Pillow does not notice that a disk took a part of a JPEG file alone.
    encoded = io.BytesIO()
    picture.save(encoded, format=PIL.Image.registered_extensions()[file.suffix], quality=92)  # ignored by lossless formats
    write_atomically(file, encoded.getvalue())
    return [file]


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

    def check(self, ways: Sequence[str]) -> None:
        """Raise RequestError if `--save` names an unknown format."""
        if unknown := [way for way in ways if way not in self.formats]:
            raise RequestError(f'--save: {unknown[0]!r} is not one of {", ".join(self.formats)}')

    def write(self, result: Any, image: Image, stem: Path, ways: Sequence[str] = ()) -> list[Path]:
        """Write the result of one image as `stem`.* in the formats `ways`, and return the files. Raises OSError."""
        return [file for way in ways or self.default for file in self.formats[way](result, image, stem)]
