"""Files that results become, named after their image: of `street.png` come `street.json` and `street_overlay.jpg`."""

from pathlib import Path

import PIL.Image

from phalanx.data.samples import Image


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
