"""Boxes in lines of numbers: DOTA, KITTI, WIDER FACE, and MOT."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.tree import IMAGES, Tree, read_text
from phalanx.data.checks import AnnotationError, parse_number, shorten
from phalanx.data.shapes import bounding_box, polygon

NUMBER = r'-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?'
DOTA = re.compile(rf'((?:{NUMBER}\s+){{8}})(\S(?:.*?\S)?)\s+([012])')  # corners, class, difficulty
DOTA_HEAD = re.compile(r'(imagesource|gsd)\s*:.*')
FIELD = rf'(?:{NUMBER}|True|False)'  # FiftyOne writes flags as words
KITTI = re.compile(rf'(\S(?:.*?\S)?)\s+((?:{FIELD}\s+){{13,14}}{FIELD})')  # class; truncated, occluded, alpha, box, ...
ANYTHING = 'DontCare'  # class of KITTI's regions in which objects are not annotated
FACE = re.compile(rf'((?:{NUMBER}\s+){{3}}{NUMBER})(.*)')  # x, y, width, height; attributes, or the class (Datumaro)
INVALID = 3  # place of WIDER FACE's flag of faces that cannot be recognised among its attributes
MOT = re.compile(rf'{NUMBER}(?:,\s*{NUMBER}){{6,9}},?')  # frame, track, x, y, width, height, counts, class, visibility
MOT_CLASSES = (
    *('pedestrian', 'person on vehicle', 'car', 'bicycle', 'motorbike', 'non-motorized vehicle', 'static person', 'distractor'),
    *('occluder', 'occluder on the ground', 'occluder full', 'reflection', 'crowd'),
)


def find_dota(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of files of lines `x0 y0 x1 y1 x2 y2 x3 y3 class difficulty`; difficult objects are ignored."""
    _per_image(tree, found, DOTA, _dota_instance)


def find_kitti(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of files of KITTI's object detection. Regions `DontCare` are ignored for each class."""
    _per_image(tree, found, KITTI, _kitti_instance)
    classes = {instance.label for sample in found.samples for instance in sample.instances} - {ANYTHING}
    for place, sample in enumerate(found.samples):
        instances = [instance for instance in sample.instances if instance.label != ANYTHING]
        regions = [instance.box for instance in sample.instances if instance.label == ANYTHING]
        instances += [Instance(label, box, ignored=True) for box in regions for label in sorted(classes)]
        found.samples[place] = Sample(sample.image, sample.split, tuple(instances))


def _per_image(tree: Tree, found: AnnotationSet, pattern: re.Pattern[str], instance_of: Callable[..., Instance]) -> None:
    """Add the samples of text files named like an image, if some line of them has the pattern. An empty one: no object."""
    files = [path for path in tree.having('.txt') if tree.has_stem(path.stem)]
    contents: dict[Path, list[tuple[int, str]]] = {}
    for path in files:
        with found.left_out.catch():
            rows = enumerate(map(str.strip, read_text(path).splitlines()), 1)
            contents[path] = [(n, row) for n, row in rows if row and not DOTA_HEAD.fullmatch(row)]
    folders = {path.parent for path, lines in contents.items() if any(pattern.fullmatch(line) for _, line in lines)}
    if not folders:
        found.left_out.clear()
    for path, lines in contents.items():
        if path.parent in folders:
            with found.left_out.catch():
                image = tree.image(path.stem, path, f'{path}')
                with found.dropping(image):
                    instances = [_match(pattern, line, f'{path}:{n}', instance_of, tree.size(image)) for n, line in lines]
                    found.samples.append(Sample(image, tree.split_of(path), tuple(instances)))


def _match(
    pattern: re.Pattern[str], line: str, where: str, instance_of: Callable[..., Instance], size: tuple[int, int]
) -> Instance:
    match = pattern.fullmatch(line)
    if match is None:
        raise AnnotationError(f'{where}: is not a line like the others: {shorten(line)}')
    return instance_of(match, where, size)


def _dota_instance(match: re.Match[str], where: str, size: tuple[int, int]) -> Instance:
    values = [float(word) for word in match[1].split()]
    corners = [[x, y] for x, y in zip(values[::2], values[1::2], strict=True)]
    return Instance(match[2], bounding_box(corners), (polygon(corners, size, where),), corners, ignored=match[3] != '0')


def _kitti_instance(match: re.Match[str], where: str, size: tuple[int, int]) -> Instance:
    x0, y0, x1, y1 = (float(word) for word in match[2].split()[3:7])
    if not (x0 <= x1 and y0 <= y1):
        raise AnnotationError(f'{where}: its box {x0:g}, {y0:g}, {x1:g}, {y1:g} has no area')
    return Instance(match[1], (x0, y0, x1, y1), ignored=match[1] == ANYTHING)


def find_wider_face(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of lists `wider_face_*_bbx_gt.txt`: an image, the number of its faces, and a line for each."""
    for path in tree.having('.txt'):
        if not path.name.endswith('_bbx_gt.txt'):
            continue
        blocks = [*_blocks(path)]
        counts_none = any(lines[:1] == ['0'] for _, _, lines in blocks)  # Datumaro writes nothing where there is no face
        for number, name, lines in blocks:
            where = f'{path}:{number}'
            with found.left_out.catch():
                image = tree.image(name, path, where)
                with found.dropping(image):
                    count = int(parse_number(lines[0] if lines else '' if counts_none else '0', where))
                    if lines and len(lines) - 1 not in (count, max(count, 1)):  # no face: a line of zeros
                        raise AnnotationError(f'{where}: announces {count} faces, but has lines for {len(lines) - 1}')
                    instances = [_face(line, f'{where}: face {n}') for n, line in enumerate(lines[1 : 1 + count], 1)]
                    found.samples.append(Sample(image, tree.split_of(path), tuple(instances)))


def _blocks(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Number and text of each line that names an image, and the lines up to the next."""
    name, start, lines = '', 0, list[str]()
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip().lower().endswith(IMAGES):
            if name:
                yield start, name, lines
            name, start, lines = line.strip(), number, []
        elif line.strip():
            lines.append(line.strip())
    if name:
        yield start, name, lines


def _face(line: str, where: str) -> Instance:
    match = FACE.fullmatch(line)
    if match is None:
        raise AnnotationError(f'{where}: expected x, y, width, height and attributes, got {shorten(line)}')
    x, y, width, height = (float(word) for word in match[1].split())
    words = match[2].split()
    flags = [*takewhile(lambda word: word in ('-', 'True', 'False') or word.isdigit(), words)]
    label, is_invalid = ' '.join(words[len(flags) :]), flags[INVALID : INVALID + 1] in (['1'], ['True'])
    return Instance(label or 'face', (x, y, x + width, y + height), ignored=is_invalid)


def find_mot(tree: Tree, found: AnnotationSet) -> None:
    """Add the frames of sequences `gt/gt.txt` beside `img1/000001.jpg`; `gt/labels.txt` names other classes than MOT's.

    Boxes that do not count (flag 0) are ignored. Frames without a line are not used.
    """
    for path in tree.having('.txt'):
        if (path.parent.name, path.name) == ('gt', 'gt.txt'):
            with found.left_out.catch():
                _read_sequence(path, tree, found)


def _read_sequence(path: Path, tree: Tree, found: AnnotationSet) -> None:
    lines = [(f'{path}:{n}', line.strip()) for n, line in enumerate(read_text(path).splitlines(), 1) if line.strip()]
    if not lines or not MOT.fullmatch(lines[0][1]):
        return
    own = path.with_name('labels.txt')
    names = [line.strip() for line in read_text(own).splitlines() if line.strip()] if own.is_file() else [*MOT_CLASSES]
    frames = defaultdict[int, list[tuple[str, list[float]]]](list)
    for where, line in lines:
        values = [parse_number(word, where) for word in line.rstrip(',').split(',')]
        frames[int(values[0])].append((where, values))
    for frame, rows in sorted(frames.items()):
        with found.left_out.catch():
            image = tree.image(f'{path.parent.parent.name}/img1/{frame:06}', path, f'{path}: frame {frame}')
            with found.dropping(image):
                instances = tuple(_parse_track(row, at, names) for at, row in rows)
                found.samples.append(Sample(image, tree.split_of(path), instances))
    found.class_names = tuple(dict.fromkeys([*found.class_names, *names]))


def _parse_track(values: list[float], where: str, names: list[str]) -> Instance:
    if len(values) < 7:
        raise AnnotationError(f'{where}: expected frame, track, x, y, width, height, flag, class and visibility')
    number = int(values[7]) if len(values) > 7 and values[7] > 0 else 1
    if number > len(names):
        raise AnnotationError(f'{where}: class {number} is not one of 1 to {len(names)}')
    x, y, width, height = values[2:6]
    return Instance(names[number - 1], (x, y, x + width, y + height), ignored=values[6] == 0)
