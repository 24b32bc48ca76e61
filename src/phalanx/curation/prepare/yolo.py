"""Annotations of YOLO: a text file per image, in fractions of its width and height."""

from collections import defaultdict
from pathlib import Path

from phalanx.curation.prepare.checks import AnnotationError, shorten
from phalanx.curation.prepare.samples import Found, Sample, Thing, bounding_box
from phalanx.curation.prepare.shapes import polygon
from phalanx.curation.prepare.splits import yaml_settings
from phalanx.curation.prepare.tree import Tree, read_text
from phalanx.data.folders import keypoint_fields

MOST_CLASSES = 10_000
NAMES = ('classes.txt', 'obj.names', 'labels.txt', 'classes.names', '_darknet.labels')


def read_yolo(tree: Tree, found: Found) -> None:
    """Add the samples of lines `class x y width height [confidence]`, poses, or polygons `class x y x y x y ...`.

    The file has the name of its image and lies beside it or in a folder `labels`; an empty file means no objects.
    """
    names, files = _class_names(tree), defaultdict(list)
    pose = next((fields for _, settings in yaml_settings(tree) if (fields := keypoint_fields(settings))), 0)
    for path in tree.having('.txt'):
        files[path.stem].append(path)
    confident, keypoints, highest = 0, 0, -1
    for image in tree.images:
        candidates = [path for path in files.get(image.stem, []) if _belongs(path, image, tree)]
        if not candidates:
            continue
        path = max(candidates, key=lambda path: (path.parent == image.parent, len(set(path.parts) & set(image.parts))))
        with found.left_out.catch():
            rows = [
                _numbers(line, f'{path}:{n}', pose) for n, line in enumerate(read_text(path).splitlines(), 1) if line.strip()
            ]
            size = tree.size(image)
            keypoints += sum(len(row) == 5 for row in rows) if pose else 0
            confident += sum(len(row) == 6 for row in rows)
            highest = max([highest, *(int(row[0]) for row in rows)])
            things = [_thing(row, size, names, f'{path}: object {n}') for n, row in enumerate(rows, 1)]
            found.samples.append(Sample(image, tree.split_of(image), tuple(things)))
    if highest < 0:  # text files of something else
        found.samples.clear()
        return
    found.class_names = tuple(names or (f'class_{number}' for number in range(highest + 1)))
    if keypoints:
        found.notes.append(f'{keypoints} objects have keypoints (kpt_shape), which are not used: their boxes are')
    if confident:
        found.notes.append(f'{confident} boxes have a confidence behind them, which is not used: were they drawn by a person?')
    if not names:
        found.notes.append(f'no data.yaml or classes.txt names the classes: they are called class_0 to class_{highest}')


def _belongs(path: Path, image: Path, tree: Tree) -> bool:
    """True if labels at `path` may belong to `image`: beside it, or below `labels` for an image below `images`."""
    if path.parent == image.parent:
        return True
    own, other = (file.relative_to(tree.root).parts[:-1] for file in (path, image))
    swapped = tuple('labels' if part == 'images' else part for part in other)
    return own == swapped or (
        'labels' in own and tuple(p for p in own if p != 'labels') == tuple(p for p in other if p != 'images')
    )


def _numbers(line: str, where: str, pose: int) -> list[float]:
    """Class and box, a confidence or a polygon; `pose`: keypoint numbers behind each box. Raises AnnotationError."""
    try:
        row = [float(word) for word in line.split()]
    except ValueError:
        row = []
    if pose and len(row) == 5 + pose:
        row = row[:5]
    elif pose or (len(row) not in (5, 6) and (len(row) < 7 or len(row) % 2 == 0)):
        expected = f'class, box and {pose} numbers of keypoints' if pose else 'class x y width height, or class and a polygon'
        hint = '' if pose or len(row) < 8 else '; are there keypoints behind the box? then data.yaml needs kpt_shape'
        raise AnnotationError(f'{where}: expected {expected}, got {shorten(line.strip())}{hint}')
    if not 0 <= row[0] < MOST_CLASSES or row[0] % 1 or not all(-1 <= value <= 2 for value in row[1:]):
        raise AnnotationError(f'{where}: expected a class and fractions of the image, got {shorten(line.strip())}')
    return row


def _thing(row: list[float], size: tuple[int, int], names: list[str], where: str) -> Thing:
    number, (W, H) = int(row[0]), size
    if names and number >= len(names):
        raise AnnotationError(f'{where}: class {number} is not one of 0 to {len(names) - 1}')
    label = names[number] if names else f'class_{number}'
    if len(row) < 7:
        x, y, width, height = row[1:5]
        return Thing(label, ((x - width / 2) * W, (y - height / 2) * H, (x + width / 2) * W, (y + height / 2) * H))
    points = [[x * W, y * H] for x, y in zip(row[1::2], row[2::2], strict=True)]
    return Thing(label, bounding_box(points), (polygon(points, size, where),))


def _class_names(tree: Tree) -> list[str]:
    """Class names of data.yaml, or of a file with one name per line; empty without either."""
    for _, settings in yaml_settings(tree):
        entry = settings.get('names')
        names = entry.value if entry is not None else None
        if isinstance(names, dict) and names.keys() == set(map(str, range(len(names)))):  # numbers, quoted or not
            names = [names[str(number)] for number in range(len(names))]
        if isinstance(names, list) and names and all(name.text for name in names):
            return [str(name.text).strip() for name in names]  # as written: `no` is a word here
    for path in tree.files:
        if path.name.lower() in NAMES:
            return [line.strip() for line in read_text(path).splitlines() if line.strip()]
    return []
