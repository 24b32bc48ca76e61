"""Pictures and files of class maps."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image

from phalanx.data.bands import Bands, to_rgb
from phalanx.data.image import LabelMap, find_background, overlay, palette
from phalanx.data.samples import Image
from phalanx.families.labelling import Shape
from phalanx.families.labelling import write_labelme as write_shapes
from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.outlines import find_regions
from phalanx.families.writing import Write, Writers, picture_writer, write_picture, write_text

COLOURS = palette(256)
COLOURS[VOID] = 0
HOLE = '_background_'  # labelme's label of what is none of the classes


def draw_class_map(class_map: LabelMap) -> Image:
    """Return the class map [H, W] in the colours of its classes, [H, W, 3]; void is black."""
    return COLOURS[class_map]


def draw_overlay(image: Image, class_map: LabelMap, class_names: Sequence[str], alpha: float = 0.5) -> Image:
    """Return the image blended with the colours of its classes; void and a class named background stay uncoloured."""
    is_plain = (class_map == VOID) | (class_map == find_background(class_names))
    return np.where(is_plain[..., None], image, overlay(image, draw_class_map(class_map), alpha))


def draw_comparison(image: Image, truth: LabelMap, prediction: LabelMap, class_names: Sequence[str]) -> list[tuple[str, Image]]:
    """Return captioned pictures: the image, ground truth and prediction over it."""
    pictures = [
        (name, draw_overlay(image, labels, class_names, 0.6)) for name, labels in (('truth', truth), ('prediction', prediction))
    ]
    return [('image', image), *pictures]


def build_writers(class_names: Sequence[str], bands: Bands | None = None) -> Writers:
    """Return the writers of the formats that `phalanx predict` offers."""

    def draw(image: Image, class_map: LabelMap) -> Image:
        return draw_overlay(to_rgb(image, bands), class_map, class_names)

    pictures = picture_writer(draw, '_overlay.jpg')
    ways: dict[str, Write] = {'masks': write_mask, 'json': partial(write_json, class_names), 'pictures': pictures}
    return Writers(draw, ways, default=('masks', 'pictures'), labels={'labelme': partial(write_labelme, class_names)})


def write_mask(class_map: LabelMap, image: Image, stem: Path) -> list[Path]:
    """Write `stem`.png, a palette image whose indices are the classes."""
    # A palette image: the same file shows colours to people and class ids to programs.
    picture = PIL.Image.fromarray(class_map)
    picture.putpalette(COLOURS.tobytes())
    return write_picture(stem, '.png', picture)


def write_json(class_names: Sequence[str], class_map: LabelMap, image: Image, stem: Path) -> list[Path]:
    """Write `stem`.json: name, label, pixels and share of the image of each class present, the largest first."""
    # Largest first; ties keep the order of classes.
    counts = np.bincount(class_map.reshape(-1), minlength=len(class_names))
    rows = [
        {'name': class_names[label], 'label': label, 'pixels': int(counts[label]), 'share': counts[label] / class_map.size}
        for label in np.argsort(-counts, kind='stable').tolist()
        if counts[label]
    ]
    return write_text(stem, '.json', json.dumps(rows, ensure_ascii=False, indent=1))


def write_labelme(class_names: Sequence[str], class_map: LabelMap, image: Image, stem: Path, file: Path) -> list[Path]:
    """Write the outlines of regions for labelme. Of the background, only what others may enclose: it lies over them.

    Such files have no holes, and later outlines lie over earlier ones.
    """
    background = find_background(class_names)
    regions = [region for region in find_regions(class_map) if region.label != background or region.is_inside]
    names = [HOLE if region.label == background else class_names[region.label] for region in regions]
    outlines = [region.outline.tolist() for region in regions]
    return write_shapes(map(Shape, names, outlines), image, stem, file)
