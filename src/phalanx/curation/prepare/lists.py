"""Text files: lists of images with their texts, label maps or boxes; a file per image; folders by class."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from phalanx.curation.prepare.checks import AnnotationError, check_floats, get_member, parse_json, shorten
from phalanx.curation.prepare.samples import Found, Sample, Thing, bounding_box
from phalanx.curation.prepare.shapes import corners_of
from phalanx.curation.prepare.tree import IMAGES, Tree, read_text

LISTS = ('.txt', '.tsv', '.lst', '.list')
ILLEGIBLE = ('###', '*')  # transcriptions of illegible texts
LINE = 'text'  # label of the lines of a page
OCROPUS = re.compile(r'\.(nrm|bin|raw|dew)$')  # NAME.nrm.png is the grey image of NAME.gt.txt, NAME.bin.png its binary one
SEEN = 'fileState.txt'  # list of reviewed images of PPOCRLabel


def find_lists(tree: Tree, found: Found) -> None:
    """Add the samples of files whose lines have an image and its text, label map, or JSON list of text lines.

    The separator is a tab, a comma, or blanks.
    """
    for path in (path for path in tree.having(*LISTS) if path.name != SEEN):
        with found.left_out.catch():
            for number, name, rest in _lines(path, tree):
                where = f'{path}:{number}'
                with found.left_out.catch():
                    found.samples.append(_of_line(tree.image(name, path, where), rest, where, path, tree))
    found.classes_from = next((file for file in tree.files if file.name in ('classes.txt', 'labels.txt')), None)


def _lines(path: Path, tree: Tree) -> Iterator[tuple[int, str, str]]:
    """Yield number, image and rest of each line; nothing if the first line does not begin with an image."""
    lines = [(number, line.strip('\r\n')) for number, line in enumerate(read_text(path).split('\n'), 1) if line.strip()]
    separator = next((each for each in ('\t', ',', ' ') if lines and _image(lines[0][1], each, tree)), '')
    for number, line in lines if separator else []:
        name, _, rest = line.partition(separator)
        if rest.strip():
            yield number, name.strip(), rest.strip(' ')


def _image(line: str, separator: str, tree: Tree) -> bool:
    name, found, rest = line.partition(separator)
    return bool(found and rest.strip()) and Path(name).suffix.lower() in IMAGES and tree.has_image(name.strip())


def _of_line(image: Path, rest: str, where: str, path: Path, tree: Tree) -> Sample:
    split = tree.split_of(path)
    if rest.startswith('[{') or rest == '[]':
        return Sample(image, split, _page(rest, where))
    if Path(rest.strip()).suffix.lower() in IMAGES and tree.has_image(rest.strip()):
        return Sample(image, split, mask=tree.image(rest.strip(), path, where))
    quoted = re.fullmatch(r'\s*"(.*)"', rest)
    return Sample(image, split, text=quoted[1] if quoted else rest)


def _page(text: str, where: str) -> tuple[Thing, ...]:
    """Text lines of a page in the format of PaddleOCR: `[{"transcription": ..., "points": [[x, y], ...]}, ...]`."""
    things = []
    for number, entry in enumerate(parse_json(text, where)):
        place = f'{where}: line {number}'
        points = [check_floats(point, 2, f'{place}: points') for point in get_member(entry, 'points', list, place)]
        if len(points) < 2:
            raise AnnotationError(f'{place}: has fewer than 2 points')
        text = get_member(entry, 'transcription', str, place)
        things.append(_line_of_page(points, ILLEGIBLE[0] if entry.get('difficult') is True else text))
    return tuple(things)


def _line_of_page(points: list[list[float]], text: str) -> Thing:
    corners = points if len(points) > 2 else ()
    return Thing(LINE, bounding_box(points), (), corners, text, ignored=text in ILLEGIBLE)


def find_text_files(tree: Tree, found: Found) -> None:
    """Add the samples of images with a text file each, NAME.txt or NAME.gt.txt, that holds their text.

    Files of ICDAR (`gt_NAME.txt`, or lines `x0,y0,x1,y1,x2,y2,x3,y3,text` or `x0,y0,x1,y1,text`) hold the lines of a page.
    """
    files = defaultdict(list)
    for path in tree.having('.txt'):
        files[path.name.removesuffix('.txt').removesuffix('.gt').removeprefix('gt_')].append(path)
    for image in tree.images:
        stem = OCROPUS.sub('', image.stem)
        if stem != image.stem and not image.stem.endswith('.nrm') and tree.has_image(f'{stem}.nrm.png'):
            continue  # the same line in black and white
        candidates = files.get(image.stem) or files.get(stem, [])
        if candidates:
            path = max(candidates, key=lambda path: path.parent == image.parent)
            with found.left_out.catch():
                lines = [line.strip('\r') for line in read_text(path).split('\n') if line.strip()]
                marked = [_marked(line) for line in lines]
                if None not in marked and (lines or path.name.startswith('gt_')):  # ICDAR has pages without a text, too
                    found.samples.append(Sample(image, tree.split_of(image), tuple(thing for thing in marked if thing)))
                elif len(lines) == 1:
                    found.samples.append(Sample(image, tree.split_of(image), text=lines[0]))
                else:
                    raise AnnotationError(f'{path}: has {len(lines)} lines; an image of a line has one: {shorten(lines[:1])}')


def _marked(line: str) -> Thing | None:
    """Parse a text line with its corners (eight numbers) or box (four) before the text; None for others."""
    for count in (8, 4):
        *numbers, text = line.split(',', count)
        try:
            values = [float(number) for number in numbers]
        except ValueError:
            continue
        if len(values) == count:
            corners = corners_of(*values) if count == 4 else [values[place : place + 2] for place in range(0, count, 2)]
            return _line_of_page([check_floats(corner, 2, line) for corner in corners], text.strip().strip('"'))
    return None


def find_class_folders(tree: Tree, found: Found) -> None:
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
