"""Drawing of boxes, and result files of detection."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from phalanx.data.bands import Bands, to_rgb
from phalanx.data.image import palette
from phalanx.data.samples import Image
from phalanx.data.voc import voc_tree
from phalanx.families.detection.data.source import Objects
from phalanx.families.labelling import Shape, write_labelme
from phalanx.families.writing import Writers, picture_writer, write_crop, write_json, write_new, write_text
from phalanx.runtime.prepare import resize
from phalanx.runtime.results import Found

UNSAFE = re.compile(r'[^\w.+-]+')  # characters of class names that file names must not have
IGNORED = (128, 128, 128)  # the colour of ignored objects
Colour = tuple[int, int, int]
font_of_size = cache(PIL.ImageFont.load_default)


def draw_boxes(image: Image, boxes: Sequence[Sequence[float]], captions: Sequence[str], colours: Sequence[Colour]) -> Image:
    """Draw boxes (xyxy) on a copy of `image`, and their captions where they cover no other caption."""
    canvas = PIL.Image.fromarray(image)
    pen = PIL.ImageDraw.Draw(canvas)
    side = max(image.shape[:2])
    width, font = max(1, side // 300), font_of_size(max(9, side // 50))
    for (x0, y0, x1, y1), colour in zip(boxes, colours, strict=True):
        # Right and bottom sides are exclusive: draw the last column and row inside.
        pen.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=colour, width=width)
    taken: list[tuple[float, float, float, float]] = []
    # Captions come after all boxes, and the last one, which is in front, has the first choice of a place.
    for box, caption, colour in reversed([*zip(boxes, captions, colours, strict=True)]):
        left, top, right, bottom = pen.textbbox((0, 0), caption, font=font)
        w, h = right - left + 3, bottom - top + 3
        if caption and (place := find_place(box, w, h, image.shape[:2], taken)):
            x, y = place
            taken.append((x, y, x + w, y + h))
            pen.rectangle(taken[-1], fill=colour)
            pen.text((x + 2 - left, y + 1 - top), caption, font=font, fill=_contrasting(colour))
    return np.asarray(canvas)


def find_place(
    box: Sequence[float], w: float, h: float, size: tuple[int, ...], taken: Sequence[tuple[float, float, float, float]]
) -> tuple[float, float] | None:
    """Upper left corner of a caption of `w` x `h` pixels for `box`: above it, inside or below; None if all is `taken`.

    The image has `size` (height, width).
    """
    (x0, top), bottom = box[:2], box[3]
    x = max(0.0, min(x0, size[1] - w))
    inside = np.arange(top + h, bottom - 2 * h, h).tolist()
    for y in (top - h, top, bottom - h, bottom, *inside):
        is_free = not any(x < right and left < x + w and y < low and high < y + h for left, high, right, low in taken)
        if y >= 0 and y + h <= size[0] and is_free:
            return x, y
    return None


def draw_detections(image: Image, detections: Sequence[Found]) -> Image:
    """Draw detections, the most probable ones in front."""
    rows = sorted(detections, key=lambda detection: detection.score)
    captions = [f'{row.name} {row.score:.2f}' for row in rows]
    return draw_boxes(image, [row.box for row in rows], captions, [_colour(row.label) for row in rows])


def draw_objects(image: Image, objects: Objects, class_names: Sequence[str]) -> Image:
    """Draw true objects; ignored ones are grey."""
    rows = list(objects.rows())
    colours = [IGNORED if ignored else _colour(label) for _, label, ignored, _ in rows]
    return draw_boxes(image, [box for box, *_ in rows], [class_names[label] for _, label, *_ in rows], colours)


def draw_comparison(
    image: Image, size: tuple[int, int], truth: Objects, class_names: Sequence[str], detections: Sequence[Found]
) -> list[tuple[str, Image]]:
    """Pictures of `size` (height, width): true boxes and detections."""
    image = resize(image, *size)
    return [('truth', draw_objects(image, truth, class_names)), ('prediction', draw_detections(image, detections))]


def filter_by_score(detections: Sequence[Found], least: float) -> list[Found]:
    """Detections with a score of at least `least`."""
    return [detection for detection in detections if detection.score >= least]


def build_writers(shown_from: float, bands: Bands | None = None) -> Writers:
    """Writers of detections: JSON gets all, other formats those with a score of at least `shown_from`."""

    def shown(write: Callable[..., list[Path]]) -> Callable[..., list[Path]]:
        return lambda detections, *place: write(filter_by_score(detections, shown_from), *place)

    def draw(image: Image, detections: Sequence[Found]) -> Image:
        return draw_detections(to_rgb(image, bands), filter_by_score(detections, shown_from))

    def crop(detections: Sequence[Found], image: Image, stem: Path) -> list[Path]:
        return write_crops(detections, to_rgb(image, bands), stem)

    pictures = picture_writer(draw, '_overlay.jpg')
    ways = {'json': write_json, 'txt': shown(write_yolo), 'crops': shown(crop), 'pictures': pictures}
    labels = {'voc': shown(write_voc), 'labelme': shown(write_boxes)}
    return Writers(draw, ways, default=('json', 'pictures'), labels=labels)


def write_yolo(detections: Sequence[Found], image: Image, stem: Path) -> list[Path]:
    """Write the text format of YOLO: `class x y width height score` per line, centre and sides as fractions of the image."""
    height, width = image.shape[:2]
    lines = []
    for detection in detections:
        x0, y0, x1, y1 = detection.box
        shares = ((x0 + x1) / 2 / width, (y0 + y1) / 2 / height, (x1 - x0) / width, (y1 - y0) / height)
        lines.append(' '.join([str(detection.label), *(f'{share:.6f}' for share in (*shares, detection.score))]) + '\n')
    return write_text(stem, '.txt', ''.join(lines))


def write_voc(detections: Sequence[Found], image: Image, stem: Path, file: Path) -> list[Path]:
    """Write the XML of Pascal VOC, which tools for annotation open: class names and boxes, without scores."""
    tree = voc_tree(file.name, (image.shape[1], image.shape[0]), ((row.name, row.box, False) for row in detections))
    ElementTree.indent(tree)
    return write_new(stem.with_name(f'{stem.name}.xml'), ElementTree.tostring(tree, encoding='unicode').encode())


def write_boxes(detections: Sequence[Found], image: Image, stem: Path, file: Path) -> list[Path]:
    """Write the JSON of labelme: class names and boxes, without scores."""
    return write_labelme((Shape(row.name, (row.box[:2], row.box[2:])) for row in detections), image, stem, file)


def write_crops(detections: Sequence[Found], image: Image, stem: Path) -> list[Path]:
    """Write the crop of each object, with number and class in its name: `street_01_car.jpg`."""
    endings = (f'_{number:02}_{UNSAFE.sub("_", row.name)}.jpg' for number, row in enumerate(detections, 1))
    return [file for end, row in zip(endings, detections, strict=True) for file in write_crop(stem, end, image, row.box)]


@cache
def _colour(label: int) -> Colour:
    r, g, b = palette(label + 1)[label].tolist()
    return r, g, b


def _contrasting(colour: Colour) -> Colour:
    """Black or white, the more readable one on `colour`."""
    r, g, b = colour
    return (0, 0, 0) if 0.299 * r + 0.587 * g + 0.114 * b > 140 else (255, 255, 255)  # ITU-R BT.601 luma
