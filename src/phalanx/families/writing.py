"""Files that results become, named after their image: of `street.png` come `street.json` and `street_overlay.jpg`."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import PIL.Image

from phalanx.data.samples import Image

Write = Callable[[Any, Image, Path], list[Path]]  # (result, its image, a path without suffix) -> files written


def write_text(stem: Path, ending: str, text: str) -> list[Path]:
    """The file that is called `stem` and `ending`, with `text` in it."""
    file = stem.with_name(f'{stem.name}{ending}')
    file.write_text(text, encoding='utf-8')
    return [file]


def write_picture(stem: Path, ending: str, image: Image) -> list[Path]:
    """The same with an image, as JPEG or what `ending` says."""
    file = stem.with_name(f'{stem.name}{ending}')
    PIL.Image.fromarray(image).save(file, quality=92)  # which formats without a loss pass over
    return [file]


def write_crop(stem: Path, ending: str, image: Image, box: Sequence[float]) -> list[Path]:
    """The same with what of an image is within a box (xyxy); no file where that is nothing."""
    (x0, y0), (x1, y1) = map(math.floor, box[:2]), map(math.ceil, box[2:])
    cut = image[y0:y1, x0:x1]
    return write_picture(stem, ending, cut) if cut.size else []


def picture_writer(draw: Callable[[Image, Any], Image], ending: str) -> Write:
    """What writes the picture that `draw` makes of an image and its result."""
    return lambda result, image, stem: write_picture(stem, ending, draw(image, result))


def write_json(found: Sequence[Any], image: Image, stem: Path) -> list[Path]:
    """Each thing that was found, a dataclass, with its fields."""
    return write_text(stem, '.json', json.dumps([asdict(one) for one in found], indent=1))


@dataclass(frozen=True)
class Writers:
    """How results become pictures and files, these by what `phalanx predict --save` calls each way."""

    draw: Callable[[Image, Any], Image]  # an image and its result -> the result on it, or beside it: [h, w, 3] RGB
    formats: Mapping[str, Write]
    default: Sequence[str]  # those that are taken when none is asked for

    def write(self, result: Any, image: Image, stem: Path, chosen: Sequence[str] = ()) -> list[Path]:
        """Writes the result of one image beside `stem` in the ways `chosen`, and returns the files. Raises OSError."""
        return [file for way in chosen or self.default for file in self.formats[way](result, image, stem)]
