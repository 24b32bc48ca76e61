"""Text files: lists of images with their texts, label maps or boxes; a file per image; folders by class."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from phalanx.curation.prepare.class_files import find_class_file
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.tree import IMAGES, Tree, nearness, read_text
from phalanx.data.checks import AnnotationError, shorten
from phalanx.data.shapes import bounding_box, corners_of
from phalanx.data.texts import (
    IGNORED_TEXTS,
    has_column,
    parse_coordinates,
    parse_icdar,
    parse_page,
    parse_total_text,
    read_matlab_file,
)

LISTS = ('.txt', '.tsv', '.lst', '.list')
TRIED = 10  # lines that are looked at for the names of images
MOST_CUTS = 20  # separators in a line that may end the name of its image
PAGE = re.compile(r'\[\s*(\{\s*"|\]$)|\{\s*"(transcription|points)"')  # PaddleOCR's list of texts; without a list it is refused
LINE = 'text'  # label of the lines of a page
OCROPUS = re.compile(r'\.(nrm|bin|raw|dew)$')  # NAME.nrm.png is the grey image of NAME.gt.txt, NAME.bin.png its binary one
NUMBERS = re.compile(r'(?<!\d)(-?\d+(\.\d+)?([\s,]+|$)){5}')  # in a row: boxes, not a text
MOST_VISDRONE = 12  # of score, category, truncation and occlusion, which follow x, y, width and height
CTW1500 = 14  # points of each outline
MJSYNTH = re.compile(r'\d+_(?P<word>.+)_(?P<number>\d+)\.jpe?g', re.IGNORECASE)  # the number in a lexicon is in its lists
# Of PPOCRLabel, in English and Chinese: texts of boxes that nobody wrote down, or that its model could not read.
PLACEHOLDERS = ('TEMPORARY', '\u5f85\u8bc6\u522b', 'NULL', '\u65e0\u6cd5\u8bc6\u522b')
WITH_PLACEHOLDERS = ('Label.txt', 'rec_gt.txt')
SEEN = 'fileState.txt'  # list of reviewed images of PPOCRLabel


def find_lists(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of files whose lines have an image and its text, label map, or JSON list of text lines.

    The separator is a tab, a comma, or blanks.
    """
    for path in (path for path in tree.having(*LISTS) if path.name != SEEN):
        with found.left_out.catch():
            for number, name, rest in _lines(path, tree):
                where = f'{path}:{number}'
                with found.left_out.catch():
                    if name.startswith('["'):  # of PaddleOCR, which draws one of them
                        raise AnnotationError(f'{where}: names a list of images; write a line for each of them')
                    image = tree.image(name, path, where)
                    with found.dropping(image):
                        found.samples.append(_parse_line(image, rest, where, path, tree))
    found.classes_from = find_class_file(tree)


def _lines(path: Path, tree: Tree) -> Iterator[tuple[int, str, str]]:
    """Yield number, image and rest of each line; nothing if the lines do not begin with images."""
    lines = [(number, line.strip('\r\n')) for number, line in enumerate(read_text(path).split('\n'), 1) if line.strip()]
    separator = next((each for each in ('\t', ',', ' ') if _divides(each, [line for _, line in lines[:TRIED]], tree)), '')
    for number, line in lines if separator else []:
        name, rest = _cut(line, separator, tree)
        if rest.strip():
            yield number, name.strip(), rest.strip(' ')


def _divides(separator: str, head: list[str], tree: Tree) -> bool:
    """True if the first line has an image and a rest; or most lines have, and the first is a header or an image alone."""
    known = [_image(line, separator, tree) for line in head]
    return any(known[:1]) or (separator != ' ' and 2 * sum(known) > len(known) and head[0].count(separator) < 2)


def _image(line: str, separator: str, tree: Tree) -> bool:
    name, rest = _cut(line, separator, tree)
    return bool(rest.strip()) and Path(name).suffix.lower() in IMAGES and tree.has_image(name.strip())


def _cut(line: str, separator: str, tree: Tree) -> tuple[str, str]:
    """Name of the image and the rest of a line. Names may be quoted, or have the separator in them: then the disk decides."""
    if separator == ' ' and (quoted := re.fullmatch(r'"([^"]+)"\s+"?(.*?)"?', line.strip())):
        return quoted[1], quoted[2]
    cuts = [(line[: at.start()], line[at.end() :]) for at in re.finditer(re.escape(separator), line)]
    known = (cut for cut in cuts[:MOST_CUTS] if Path(cut[0]).suffix.lower() in IMAGES and tree.has_image(cut[0].strip()))
    return next(known, cuts[0] if cuts else (line, ''))


def _parse_line(image: Path, rest: str, where: str, path: Path, tree: Tree) -> Sample:
    split = tree.split_of(path)
    if PAGE.match(rest):
        return Sample(image, split, tuple(_line_of_page(one.points, _text(one.text, path)) for one in parse_page(rest, where)))
    if Path(rest.strip()).suffix.lower() in IMAGES and tree.has_image(rest.strip()):
        return Sample(image, split, mask=tree.image(rest.strip(), path, where))
    if (named := MJSYNTH.fullmatch(image.name)) and named['number'] == rest.strip():
        return Sample(image, split, text=named['word'])
    quoted = re.fullmatch(r'\s*"(.*)"', rest)  # of ICDAR, with a backslash before quotes and backslashes
    return Sample(image, split, text=re.sub(r'\\(["\\])', r'\1', quoted[1]) if quoted else _text(rest, path))


def _text(text: str, path: Path) -> str:
    """Text of an image or box in the list at `path`; empty for a placeholder."""
    return '' if text in PLACEHOLDERS and path.name in WITH_PLACEHOLDERS else text


def _line_of_page(points: list[list[float]], text: str) -> Instance:
    return Instance(LINE, bounding_box(points), (), points, text, ignored=text in IGNORED_TEXTS)


def find_text_files(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of images with a text file each, NAME.txt or NAME.gt.txt, that holds their text.

    Files of ICDAR (`gt_NAME.txt`, or lines `x0,y0,x1,y1,x2,y2,x3,y3,text` or `x0,y0,x1,y1,text`) and TotalText
    (`poly_gt_NAME.txt`, or else `poly_gt_NAME.mat`) hold the lines of a page.
    """
    files = defaultdict(list)
    for path in tree.having('.txt'):
        files[path.name.removesuffix('.txt').removesuffix('.gt').removeprefix('poly_').removeprefix('gt_')].append(path)
    for path in tree.having('.mat'):
        name = path.stem.removeprefix('poly_gt_')
        if name != path.stem and not any(each.suffix == '.txt' for each in files[name]):
            files[name].append(path)
    for image in tree.images:
        stem = OCROPUS.sub('', image.stem)
        if stem != image.stem and not image.stem.endswith('.nrm') and tree.has_image(f'{stem}.nrm.png'):
            continue  # the same line in black and white
        candidates = files.get(image.stem) or files.get(stem, [])
        if candidates:
            with found.left_out.catch():
                found.samples.append(_parse_text_file(_choose(candidates, image, tree), image, tree))
    texts = [sample.text for sample in found.samples if sample.text is not None]
    if sum(NUMBERS.search(text) is not None for text in texts) * 2 > len(texts):  # boxes of a format that refused them
        found.samples = [sample for sample in found.samples if sample.text is None]
        found.left_out.append(f'the text files of {len(texts)} images hold numbers, as boxes do, such as {shorten(texts[0])}')


def _choose(candidates: list[Path], image: Path, tree: Tree) -> Path:
    """Text file of an image: the one beside it, of the same split, or the nearest. Raises AnnotationError if two are alike."""
    split = tree.split_of(image)

    def rank(path: Path) -> tuple[bool, bool, int]:
        return path.parent == image.parent, bool(split) and tree.split_of(path) == split, nearness(path, image)

    first, *others = sorted(candidates, key=rank, reverse=True)
    if others and rank(first) == rank(others[0]) and first.parent != others[0].parent:
        raise AnnotationError(f'{image}: its text may be in {first} or in {others[0]}')
    return first


def _parse_text_file(path: Path, image: Path, tree: Tree) -> Sample:
    """Page or line of a text file. Raises AnnotationError."""
    if path.name.startswith('poly_gt_'):  # of TotalText
        words = read_matlab_file(path) if path.suffix.lower() == '.mat' else parse_total_text(read_text(path), path)
        return Sample(image, tree.split_of(path), tuple(_line_of_page(one.points, one.text) for one in words))
    is_page = path.name.startswith('gt_')  # which may have no text
    lines = [line.strip('\r') for line in read_text(path).split('\n') if line.strip()]
    divider = ' ' if is_page and ',' not in ''.join(lines[:1]) else ','  # of ICDAR 2013: blanks
    # numbers only: boxes or outlines of texts that nobody wrote down
    rows = [parse_coordinates(line.split(divider)) for line in lines]
    are_numbers = rows and all(len(row) >= (4 if is_page else 6) and not len(row) % 2 for row in rows)
    if are_numbers and not any(_is_price(row) for row in rows):
        if all(len(row) == 8 and max(row[4:]) <= MOST_VISDRONE for row in rows):
            raise AnnotationError(f'{path}: holds boxes of VisDrone, which are not read; convert them to COCO or YOLO')
        outlines = [corners_of(*row) if len(row) == 4 else _outline(row) for row in rows]
        return Sample(image, tree.split_of(path), tuple(_line_of_page(points, '') for points in outlines))
    count = 8 if lines and len(parse_coordinates(lines[0].split(divider)[:8])) == 8 else 4
    try:
        column = has_column(lines)
        marked = [parse_icdar(line, f'{path}:{n}', count, divider, column=column) for n, line in enumerate(lines, 1)]
        if lines or is_page:
            return Sample(image, tree.split_of(path), tuple(_line_of_page(one.points, one.text.strip()) for one in marked))
    except AnnotationError:
        if is_page or count == 8:
            raise
    if len(lines) == 1 and 'labels' not in path.parts[-3:-1]:  # where the boxes of YOLO lie
        return Sample(image, tree.split_of(path), text=lines[0])
    raise AnnotationError(f'{path}: expected one line, the text of the image, got {len(lines)} lines: {shorten(lines[:1])}')


def _is_price(row: list[float]) -> bool:
    """True for four corners and a text with a comma, such as 19,99, which is not a fifth point near them."""
    if len(row) != 10:
        return False
    (x0, x1), (y0, y1) = ((min(row[axis:8:2]), max(row[axis:8:2])) for axis in (0, 1))
    (x, y), reach = row[8:], max(x1 - x0, y1 - y0)
    return not (x0 - reach <= x <= x1 + reach and y0 - reach <= y <= y1 + reach)


def _outline(row: list[float]) -> list[list[float]]:
    """Points of an outline. Lines of CTW1500 have the corners of its box first, and 14 points relative to the upper left."""
    x0, y0, x1, y1, *offsets = row
    points = [offsets[n : n + 2] for n in range(0, len(offsets), 2)]
    if len(points) == CTW1500 and all(0 <= x <= x1 - x0 + 2 and 0 <= y <= y1 - y0 + 2 for x, y in points):
        return [[x0 + x, y0 + y] for x, y in points]
    return [[x0, y0], [x1, y1], *points]


def find_class_folders(tree: Tree, found: AnnotationSet) -> None:
    """Add images sorted into a folder per class; the name of the folder is their text."""
    folders = defaultdict(list)
    for image in tree.images:
        folders[image.parent.name].append(image)
    usual = {'images', 'image', 'imgs', 'img', 'jpegimages', 'masks', 'labels', 'annotations', 'data', tree.root.name.lower()}
    if len(folders) < 2 or any(
        name.lower() in usual or (tree.split_of(images[0]) and len(folders) <= 3) for name, images in folders.items()
    ):
        return
    found.samples += [
        Sample(image, tree.split_of(image), text=folder) for folder, images in folders.items() for image in images
    ]
    note = f'images in {len(folders)} folders by what they show: the name of the folder is taken as the text of each image'
    found.notes.append(note)
    found.are_classes = True
