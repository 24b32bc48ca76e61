"""Pictures and files of detected texts."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.data.image import overlay
from phalanx.data.samples import Image
from phalanx.families.labelling import TEXT, Shape, write_labelme, write_ppocrlabel
from phalanx.families.text_detection.data.source import Texts
from phalanx.families.writing import WriteLabels, Writers, picture_writer, write_json, write_picture, write_text
from phalanx.runtime.prepare import resize
from phalanx.runtime.reading import cut_out
from phalanx.runtime.results import Line, TextRegion

TEXT_COLOUR, IGNORED_COLOUR = (255, 40, 90), (128, 128, 128)  # colours
SUBPIXEL_BITS = 3  # fractional bits of coordinates for OpenCV's drawing functions


def draw_outlines(image: Image, outlines: Sequence[npt.ArrayLike], colours: Sequence[Sequence[int]]) -> Image:
    """Draw outlines [n, 2] in their colours, lightly filled, on a copy of `image`."""
    # Areas are blended in lightly, lines stay opaque.
    lines, areas = np.ascontiguousarray(image).copy(), np.ascontiguousarray(image).copy()
    width = max(1, max(image.shape[:2]) // 400)
    for points, colour in zip(outlines, colours, strict=True):
        fixed_point = (np.asarray(points, np.float64) * 2**SUBPIXEL_BITS).round().astype(np.int32)
        cv2.fillPoly(areas, [fixed_point], colour, shift=SUBPIXEL_BITS)
        cv2.polylines(lines, [fixed_point], True, colour, width, cv2.LINE_AA, shift=SUBPIXEL_BITS)
    return overlay(lines, areas, 0.2)


def draw_texts(image: Image, texts: Texts) -> Image:
    """Draw the true texts on `image`, ignored ones in grey."""
    return draw_outlines(image, texts.outlines, [IGNORED_COLOUR if ignored else TEXT_COLOUR for ignored in texts.ignored])


def draw_regions(image: Image, regions: Sequence[TextRegion]) -> Image:
    """Draw the detected texts on `image`."""
    return draw_outlines(image, [region.points for region in regions], [TEXT_COLOUR] * len(regions))


def draw_comparison(
    image: Image, size: tuple[int, int], truth: Texts, regions: Sequence[TextRegion]
) -> list[tuple[str, Image]]:
    """Return captioned pictures of `size` (height, width): the image with the true texts, and with the detected ones."""
    image = resize(image, *size)
    return [('truth', draw_texts(image, truth)), ('prediction', draw_regions(image, regions))]


def write_icdar(regions: Sequence[TextRegion], image: Image, stem: Path) -> list[Path]:
    """Write `STEM.txt` in the format of ICDAR 2015: one line `x,y,x,y,...` per text, in integer pixels."""
    lines = (','.join(f'{value:.0f}' for point in region.points for value in point) for region in regions)
    return write_text(stem, '.txt', ''.join(f'{line}\n' for line in lines))


def write_crops(regions: Sequence[TextRegion], image: Image, stem: Path) -> list[Path]:
    """Write each text as an upright crop, ready for a recogniser, numbered in its name: `page_001.jpg`."""
    # Rectified, as `phalanx read` passes them to its recogniser.
    cuts = (cut_out(image, region.points) for region in regions)
    return [file for number, cut in enumerate(cuts, 1) for file in write_picture(stem, f'_{number:03}.jpg', cut)]


def shapes_of(texts: Sequence[TextRegion | Line]) -> list[Shape]:
    """Return what people correct of texts: outlines, and what a recogniser has read."""
    return [Shape(TEXT, text.points, text.text if isinstance(text, Line) else '') for text in texts]


LABELS: dict[str, WriteLabels] = {  # of `phalanx read`, too
    'labelme': lambda texts, image, stem, file: write_labelme(shapes_of(texts), image, stem, file),
    'ppocrlabel': lambda texts, image, stem, file: write_ppocrlabel(shapes_of(texts), stem, file),
}
WRITERS = Writers(
    draw_regions,
    {'json': write_json, 'txt': write_icdar, 'crops': write_crops, 'pictures': picture_writer(draw_regions, '_overlay.jpg')},
    default=('json', 'pictures'),
    labels=LABELS,
)
