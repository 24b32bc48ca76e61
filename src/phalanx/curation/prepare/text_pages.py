"""Pages with the outlines and texts of their lines, as readers of PAGE-XML, ALTO and hOCR hand them over."""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.tree import Tree
from phalanx.data.checks import AnnotationError, check_size, shorten
from phalanx.data.shapes import bounding_box, corners_of, polygon
from phalanx.data.texts import parse_coordinates

NO_OUTLINE = 'has no outline; let the program that found the line compute its outline, too'
SLACK = 0.02  # of the ratio between height and width, of a page in millimetres or inches and its image


class Line(NamedTuple):
    where: str
    text: str  # may be empty: a line that nobody transcribed
    points: list[list[float]]
    ignored: bool = False
    turns: int = 0  # quarters counter-clockwise, by which the text is turned


class Page(NamedTuple):
    image: str  # as the file names it; may be empty
    size: tuple[int | None, int | None]  # (width, height)
    lines: Iterator[Line]  # read once the image is known; raises AnnotationError
    unit: str = 'pixel'


def add_pages(pages: Iterable[Page], path: Path, tree: Tree, found: AnnotationSet, sources: dict[Path, Path]) -> None:
    """Add the samples of the pages in a file. `sources`: the file of each image so far."""
    for page in pages:
        with found.left_out.catch():
            image = find_image(page.image, path, tree)
            with found.dropping(image):
                if other := sources.get(image):
                    several = f'has several pages of {image}; write an image and a file for each'
                    again = f'{image} is annotated in {other}, too; keep one of the files, or name its folder (--labels)'
                    raise AnnotationError(f'{path}: {several if other == path else again}')
                sources[image] = path
                size, (x_scale, y_scale) = _scale(page, image, f'{path}')
                instances = []
                for line in page.lines:
                    points = [[x * x_scale, y * y_scale] for x, y in line.points]
                    box, outline = bounding_box(points), (polygon(points, size, line.where),)
                    text, upright = ' '.join(line.text.split()), corners_of(*box)
                    # Clockwise quarters are left to where lines are cut out, which turns high ones so: upright characters in a
                    # column are marked alike.
                    corners = upright[-line.turns :] + upright[: -line.turns] if line.turns in (1, 2) else ()
                    instances.append(Instance('text', box, outline, corners, text, line.ignored))
                found.samples.append(Sample(image, tree.split_of(path) or tree.split_of(image), tuple(instances)))


def find_image(name: str, path: Path, tree: Tree) -> Path:
    """The image that a file names, or else the one with the name of the file. Raises AnnotationError."""
    try:
        return tree.image(name or path.stem, path, f'{path}')
    except AnnotationError:  # images get renamed, and programs name a temporary file
        same = tree.images_named(path.stem, path)
        if len(same) != 1:
            raise
        return same[0]


def _scale(page: Page, image: Path, where: str) -> tuple[tuple[int, int], tuple[float, float]]:
    """Size of the image, and pixels per unit of the annotation in x and y. Raises AnnotationError."""
    is_known = all(page.size)
    if page.unit == 'pixel':
        return check_size(page.size if is_known else (None, None), image, f'{where}: size'), (1.0, 1.0)
    size = check_size((None, None), image, where)
    # Transkribus says mm10 and writes pixels: the size of the page is right in either case.
    x, y = (pixels / (units or 1) for pixels, units in zip(size, page.size, strict=True))
    if not is_known or abs(x / y - 1) > SLACK:
        raise AnnotationError(
            f'{where}: is measured in {page.unit}, on a page of {page.size[0]} x {page.size[1]}, which does not fit {image} '
            f'of {size[0]} x {size[1]} pixels; write coordinates in pixels'
        )
    return size, (x, y)


def count_turns(baseline: list[list[float]], text: str) -> int:
    """Quarters counter-clockwise of a baseline. Texts from the right may have one to the left."""
    (x0, y0), (x1, y1) = baseline[0], baseline[-1]
    turns = round(math.degrees(math.atan2(y0 - y1, x1 - x0)) / 90) % 4
    return 0 if turns == 2 and any(unicodedata.bidirectional(one) in ('R', 'AL') for one in text) else turns


def join_words(words: Iterable[tuple[str, Sequence[float]]]) -> str:
    """Texts of words with their boxes (x0, y0, x1, y1; empty: unknown), with blanks between them.

    Punctuation that touches a word has none: it is often a word of its own. Words may touch: pero-ocr divides a line evenly.
    """
    joined, before, is_word = '', tuple[float, ...](), False
    for text, box in words:
        was_word, is_word = is_word, any(map(str.isalnum, text))
        gap = max(box[0] - before[2], before[0] - box[2]) if box and before else 9.0  # from the left or from the right
        touches = gap <= 1 and -2 * gap < min(box[2] - box[0], before[2] - before[0])  # equal boxes are those of the line
        joined, before = joined + ('' if touches and not (was_word and is_word) else ' ') + text, tuple(box)
    return joined


def parse_outline(text: str, where: str) -> list[list[float]]:
    """Points of an outline. Raises AnnotationError."""
    points = parse_points(text)
    if len(points) < 3:
        raise AnnotationError(f'{where}: {NO_OUTLINE}' + (f' (got {shorten(text)})' if text.strip() else ''))
    return points


def parse_points(text: str) -> list[list[float]]:
    """Points in any notation in use (`0,0 9,0`, `0 0 9 0`, `(0,0) (9,0)`); none for another one."""
    values = parse_coordinates(re.split(r'[\s,()]+', text.strip(' ,()\r\n\t')))
    return [values[n : n + 2] for n in range(0, len(values) - 1, 2)] if len(values) % 2 == 0 else []
