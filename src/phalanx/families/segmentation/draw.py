"""Class maps as pictures and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import PIL.Image

from phalanx.data.image import LabelMap, overlay, palette
from phalanx.data.samples import Image
from phalanx.families.segmentation.labels import VOID

COLOURS = palette(256)
COLOURS[VOID] = 0


def coloured(class_map: LabelMap) -> Image:
    """Each class in its colour, void black: [H, W, 3]."""
    return COLOURS[class_map]


def with_classes(image: Image, class_map: LabelMap) -> Image:
    """The image with the colours of its classes over it."""
    return overlay(image, coloured(class_map), 0.5)


def compared(image: Image, truth: LabelMap, prediction: LabelMap) -> list[tuple[str, Image]]:
    """Captioned pictures of one size: the image, and the two class maps over it. Void pixels of the truth stay as they are."""
    shown = np.where(truth[..., None] == VOID, image, overlay(image, coloured(truth), 0.6))
    return [('image', image), ('truth', shown), ('prediction', overlay(image, coloured(prediction), 0.6))]


def save(class_map: LabelMap, image: Image, stem: Path) -> list[Path]:
    """Writes `class_map` as a palette image, whose indices are the classes, and over `image`; returns both files."""
    indices, over = stem.with_name(f'{stem.name}.png'), stem.with_name(f'{stem.name}_overlay.jpg')
    picture = PIL.Image.fromarray(class_map)
    picture.putpalette(COLOURS.tobytes())
    picture.save(indices)
    PIL.Image.fromarray(with_classes(image, class_map)).save(over, quality=92)
    return [indices, over]
