"""Texts in text files: lists of images with their texts, label maps or boxes, and a file for each image."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from phalanx.curation.prepare.checks import AnnotationError, floats, member, parsed, shortened
from phalanx.curation.prepare.samples import Found, Sample, Thing, box_around
from phalanx.curation.prepare.shapes import corners_of
from phalanx.curation.prepare.tree import IMAGES, Tree, text_in

LISTS = ('.txt', '.tsv', '.lst', '.list')
ILLEGIBLE = ('###', '*')  # what stands in place of a text that nobody can read
LINE = 'text'  # the label of a line on a page
OCROPUS = re.compile(r'\.(nrm|bin|raw|dew)$')  # NAME.nrm.png is the grey image of NAME.gt.txt, NAME.bin.png its binary one
SEEN = 'fileState.txt'  # where PPOCRLabel keeps which images were looked at


def find_lists(tree: Tree, found: Found) -> None:
    """Files whose lines begin with an image, behind it a text, a label map, or the JSON list of a page's lines.

    A tab stands between them, or a comma, or blanks.
    """
    for path in (path for path in tree.having(*LISTS) if path.name != SEEN):
        with found.left_out.noted():
            for number, name, rest in _lines(path, tree):
                where = f'{path}:{number}'
                with found.left_out.noted():
                    found.samples.append(_of_line(tree.image(name, path, where), rest, where, path, tree))
    found.classes_from = next((file for file in tree.files if file.name in ('classes.txt', 'labels.txt')), None)


def _lines(path: Path, tree: Tree) -> Iterator[tuple[int, str, str]]:
    """Number, image and the rest of each line; none when the first line does not begin with an image."""
    lines = [(number, line.strip('\r\n')) for number, line in enumerate(text_in(path).split('\n'), 1) if line.strip()]
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
    """The lines of a page as PaddleOCR writes them: `[{"transcription": ..., "points": [[x, y], ...]}, ...]`."""
    things = []
    for number, entry in enumerate(parsed(text, where)):
        place = f'{where}: line {number}'
        points = [floats(point, 2, f'{place}: points') for point in member(entry, 'points', list, place)]
        if len(points) < 2:
            raise AnnotationError(f'{place}: has fewer than 2 points')
        text = member(entry, 'transcription', str, place)
        things.append(_line_of_page(points, ILLEGIBLE[0] if entry.get('difficult') is True else text))
    return tuple(things)


def _line_of_page(points: list[list[float]], text: str) -> Thing:
    corners = points if len(points) > 2 else ()
    return Thing(LINE, box_around(points), (), corners, text, ignored=text in ILLEGIBLE)


def find_text_files(tree: Tree, found: Found) -> None:
    """A text file for each image, NAME.txt or NAME.gt.txt: what is written on it.

    Or, as ICDAR has it, `gt_NAME.txt`, or lines `x0,y0,x1,y1,x2,y2,x3,y3,text` or `x0,y0,x1,y1,text` in it: those of a page.
    """
    files = defaultdict(list)
    for path in tree.having('.txt'):
        files[path.name.removesuffix('.txt').removesuffix('.gt').removeprefix('gt_')].append(path)
    for image in tree.images:
        stem = OCROPUS.sub('', image.stem)
        if stem != image.stem and not image.stem.endswith('.nrm') and tree.has_image(f'{stem}.nrm.png'):
            continue  # the same line once more, of black and white
        candidates = files.get(image.stem) or files.get(stem, [])
        if candidates:
            path = max(candidates, key=lambda path: path.parent == image.parent)
            with found.left_out.noted():
                lines = [line.strip('\r') for line in text_in(path).split('\n') if line.strip()]
                marked = [_marked(line) for line in lines]
                if None not in marked and (lines or path.name.startswith('gt_')):  # ICDAR has pages without a text, too
                    found.samples.append(Sample(image, tree.split_of(image), tuple(thing for thing in marked if thing)))
                elif len(lines) == 1:
                    found.samples.append(Sample(image, tree.split_of(image), text=lines[0]))
                else:
                    raise AnnotationError(f'{path}: has {len(lines)} lines; an image of a line has one: {shortened(lines[:1])}')


def _marked(line: str) -> Thing | None:
    """A line with its corners before it: eight numbers or four, then a text."""
    for count in (8, 4):
        *numbers, text = line.split(',', count)
        try:
            values = [float(number) for number in numbers]
        except ValueError:
            continue
        if len(values) == count:
            corners = corners_of(*values) if count == 4 else [values[place : place + 2] for place in range(0, count, 2)]
            return _line_of_page([floats(corner, 2, line) for corner in corners], text.strip().strip('"'))
    return None


def find_class_folders(tree: Tree, found: Found) -> None:
    """Images sorted into folders by what they show, of which each is a class."""
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
