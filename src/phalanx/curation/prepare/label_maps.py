"""Label maps: painted from the objects of a sample, and saved with a palette."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import PIL.Image

from phalanx.curation.prepare.samples import Sample
from phalanx.data.checks import size_of
from phalanx.data.image import LabelMap, palette
from phalanx.data.shapes import Polygon, rectangle

VOID = 255  # of pixels that are ignored
BACKGROUND = 'background'
MEANING = {BACKGROUND: 0, '_background_': 0, '__ignore__': VOID}  # labels that are not classes; labelme's own among them
MOST = 254  # classes that fit a label map of 8 bits


def paint_labels(sample: Sample, names: Sequence[str]) -> LabelMap:
    """Paint the objects of a sample in order over the background, boxes as rectangles; `names`: classes, background first."""
    values = {name: number for number, name in enumerate(names)} | MEANING
    width, height = size_of(sample.image)
    canvas = np.zeros((height, width), np.uint8)
    for instance in sample.instances:
        drawn = Polygon(np.array(instance.corners, np.float64)) if len(instance.corners) else rectangle(instance.box)
        for shape in instance.outline or (drawn,):
            shape.paint(canvas, values[instance.label])
    return canvas


def save_labels(labels: LabelMap, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    colours = palette(256)
    colours[VOID] = 0
    picture = PIL.Image.fromarray(labels)
    picture.putpalette(colours.tobytes())
    picture.save(path)
