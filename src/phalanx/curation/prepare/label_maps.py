"""Writer of data sets of images and label maps, for `data: {name: file_list}`."""

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import PIL.Image

from phalanx.curation.prepare.checks import AnnotationError, size_of
from phalanx.curation.prepare.samples import SPLIT_NAMES, LeftOut, Sample
from phalanx.curation.prepare.shapes import Polygon, rectangle
from phalanx.data.image import LabelMap, palette

VOID = 255  # of pixels that are ignored
BACKGROUND = 'background'
MEANING = {BACKGROUND: 0, '_background_': 0, '__ignore__': VOID}  # labels that are not classes; labelme's own among them
MOST = 254  # classes that fit a label map of 8 bits


@dataclass(frozen=True)
class Pair:
    """Image, and a function that makes its label map."""

    image: Path
    stem: str  # path without suffix that its copies get; several levels if need be
    labels: Callable[[], LabelMap]  # raises AnnotationError


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


def write_label_maps(
    pairs: Iterable[Pair], class_names: Sequence[str], out: Path, shares: Sequence[float], seed: int, *, skip: bool
) -> tuple[dict[str, int], list[str]]:
    """Write the data set; return the images per list ({} if nothing was written) and the problems.

    The folder `out` appears as a whole or not at all: without `skip`, an image that cannot be used prevents it. Raises
    ValueError for invalid class names and for too few images.
    """
    for name in class_names:
        if not name or name != ' '.join(name.split()):
            raise ValueError(f'{name!r} cannot be the name of a class, which is one line without blanks around it')
    if len(class_names) > MOST:
        raise ValueError(f'{len(class_names)} classes do not fit a label map of 8 bits; {MOST} do')
    problems = LeftOut()
    lines: dict[str, str] = {}  # of the lists, by the name of the image
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f'.{out.name}-') as aside:
        place = Path(aside) / 'data'
        place.mkdir()
        for pair in pairs:
            stem = re.sub(r'\s', '_', pair.stem)  # in a list, a blank ends the path
            image, labels = f'images/{stem}{pair.image.suffix}', f'labels/{stem}.png'
            with problems.catch():
                if stem in lines:
                    raise AnnotationError(f'{pair.image}: an image before it is named {stem} too')
                save_labels(pair.labels(), place / labels)
                (place / image).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(pair.image, place / image)
                lines[stem] = f'{image} {labels}\n'
        if problems and not (skip and lines):
            return {}, problems
        lists = split_stems(sorted(lines), shares, seed)
        for name, stems in lists.items():
            (place / f'{name}.txt').write_text(''.join(lines[stem] for stem in stems), encoding='utf-8')
        (place / 'classes.txt').write_text(''.join(f'{name}\n' for name in class_names), encoding='utf-8')
        place.rename(out)
    return {name: len(stems) for name, stems in lists.items()}, problems


def split_stems(stems: Sequence[str], shares: Sequence[float], seed: int) -> Mapping[str, list[str]]:
    """Split `stems` at random into a list per share. Raises ValueError if a list would be empty."""
    order = np.random.default_rng(seed).permutation(len(stems))
    edges = np.rint(np.cumsum([0, *shares]) * len(stems)).astype(int)
    lists: dict[str, list[str]] = {
        name: sorted(stems[number] for number in order[first:last])
        for name, first, last in zip(SPLIT_NAMES, edges, edges[1:], strict=False)
    }
    for name, chosen in lists.items():
        if not chosen:
            raise ValueError(f'of {len(stems)} images, none is left for {name}.txt; give other shares with --split')
    return lists


def save_labels(labels: LabelMap, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    colours = palette(256)
    colours[VOID] = 0
    picture = PIL.Image.fromarray(labels)
    picture.putpalette(colours.tobytes())
    picture.save(path)
