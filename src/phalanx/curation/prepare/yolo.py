"""Annotations of YOLO: a text file per image, in fractions of its width and height."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.splits import yaml_settings
from phalanx.curation.prepare.tree import SPLITS, Tree, fold, read_text, spellings
from phalanx.data.checks import AnnotationError, check_unique
from phalanx.data.shapes import polygon
from phalanx.data.yolo import PoseGuess, YoloRow, distinct_lines, keypoint_fields, names_in, parse_row

MOST_CLASSES = 10_000
NAMES = ('classes.txt', 'obj.names', 'labels.txt', 'classes.names', '_darknet.labels', 'darknet.labels')


def read_yolo(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of lines `class x y width height [confidence]`, poses, or polygons `class x y x y x y ...`.

    The file has the name of its image and lies beside it or in a folder `labels`; an empty file means no objects.
    """
    # class names and keypoint layout from data.yaml; label files by stem
    try:
        names = _class_names(tree, found)
        shapes = [fields for _, settings in yaml_settings(tree) if (fields := keypoint_fields(settings)) is not None]
    except AnnotationError as error:  # what the numbers of the classes mean is not known
        found.left_out.append(str(error))
        return
    files = defaultdict(list)
    for path in tree.having('.txt'):
        stem = next((one for one in spellings(path.stem) if tree.has_stem(one)), path.stem)
        files[fold(stem)].append(path)
    kinds, numbers, poses, used = Counter[str](), set[int](), PoseGuess(), set[Path]()
    for image in tree.images:
        # of several files with this stem, the nearest one belongs to the image
        candidates = [path for path in files.get(fold(image.stem), []) if _belongs(path, image, tree)]
        if not candidates:
            continue
        path = max(candidates, key=lambda path: (path.parent == image.parent, len(set(path.parts) & set(image.parts))))
        used.add(path)
        with found.left_out.catch():
            rows = _rows(path, next(iter(shapes), 0))
            size = tree.size(image)
            kinds.update(row.kind for row in rows)
            numbers.update(row.label for row in rows)
            for row in rows:
                poses.add(row)
            instances = [_instance(row, size, names, f'{path}: object {n}') for n, row in enumerate(rows, 1)]
            found.samples.append(Sample(image, tree.split_of(image), tuple(instances)))
    if not numbers:  # text files of something else, or of images that are not here
        found.samples.clear()
        _report_strangers(tree.having('.txt'), tree, found)
        return
    highest = max(numbers)
    try:
        _check_numbers(numbers, names, tree.root)
        if not shapes:
            poses.check(f'{tree.root}')
    except AnnotationError as error:
        found.left_out.insert(0, str(error))
        found.samples.clear()
    labels = {path.parent for path in used}
    others = {path for same in files.values() for path in same if path.parent in labels} - used
    found.left_out += [f'{path}: there is no image {path.stem!r}' for path in sorted(others) if _is_stranger(path, tree)]
    found.class_names = tuple(names.values() or (f'class_{number}' for number in range(highest + 1)))
    if count := kinds['keypoints']:
        found.notes.append(f'{count} objects have keypoints (kpt_shape), which are not used: their boxes are')
    if count := kinds['confidence']:
        found.notes.append(f'{count} boxes have a confidence behind them, which is not used: were they drawn by a person?')
    if not names:
        found.notes.append(f'no data.yaml or classes.txt names the classes: they are called class_0 to class_{highest}')


def _check_numbers(numbers: Collection[int], names: Mapping[int, str], root: Path) -> None:
    """Raise AnnotationError for classes 1 to n beside names 0 to n - 1, as sahi and pylabel make them of COCO."""
    count = len(names)
    if [*names] == [*range(count)] and (min(numbers), max(numbers)) == (1, count):
        raise AnnotationError(
            f'{root}: the labels have classes 1 to {count}, but the names are numbered 0 to {count - 1}; number them from 1 in '
            'data.yaml (names: {1: ...}), or correct the labels'
        )


def _is_stranger(path: Path, tree: Tree) -> bool:
    """True for a file of labels of an image that is not here."""
    is_list = path.name.lower() in NAMES or path.stem.lower() in SPLITS
    return not is_list and not any(tree.has_stem(stem) for stem in spellings(path.stem))


def _report_strangers(paths: Sequence[Path], tree: Tree, found: AnnotationSet) -> None:
    """Report labels without an image, where no image has labels."""
    for path in paths:
        with suppress(AnnotationError):
            if 'labels' in path.parts and _is_stranger(path, tree) and _rows(path, 0):
                found.left_out.append(f'{path}: there is no image {path.stem!r}')


def _rows(path: Path, keypoints: int) -> list[YoloRow]:
    """The objects of a file. Raises AnnotationError."""
    lines = distinct_lines(read_text(path))
    rows = [parse_row(line, f'{path}:{number}', keypoints) for line, number in lines.items()]
    if high := [row.label for row in rows if row.label >= MOST_CLASSES]:
        raise AnnotationError(f'{path}: class {high[0]} is not below {MOST_CLASSES}')
    return rows


def _belongs(path: Path, image: Path, tree: Tree) -> bool:
    """True if labels at `path` may belong to `image`: beside it, or below `labels` for an image below `images`."""
    if tree.labels:
        return tree.is_below(path, tree.labels)
    if path.parent == image.parent:
        return True
    own = path.relative_to(tree.root).parts[:-1]
    linked = (link / image.relative_to(folder) for link, folder in tree.links.items() if image.is_relative_to(folder))
    for other in (each.relative_to(tree.root).parts[:-1] for each in (image, *linked)):
        if own == tuple('labels' if part == 'images' else part for part in other):
            return True
        if 'labels' in own and [p for p in own if p != 'labels'] == [p for p in other if p != 'images']:
            return True
    return False


def _instance(row: YoloRow, size: tuple[int, int], names: Mapping[int, str], where: str) -> Instance:
    width, height = size
    if names and row.label not in names:
        numbers = f'0 to {len(names) - 1}' if [*names] == [*range(len(names))] else ', '.join(map(str, names))
        raise AnnotationError(f'{where}: class {row.label} is not one of {numbers}')
    label = names[row.label] if names else f'class_{row.label}'
    x0, y0, x1, y1 = row.box
    points = [[x * width, y * height] for x, y in row.points]
    return Instance(
        label, (x0 * width, y0 * height, x1 * width, y1 * height), (polygon(points, size, where),) if points else ()
    )


def _class_names(tree: Tree, found: AnnotationSet) -> dict[int, str]:
    """Class names by number in data.yaml, or in a file with one name per line; empty without either. Raises AnnotationError."""
    for path, settings in yaml_settings(tree):
        is_data = settings.keys() & {'nc', 'path', *SPLITS}  # `names` of other programs' files may be anything
        if is_data and (names := names_in(settings, path)):
            count = settings['nc'].value if 'nc' in settings else len(names)
            if count != len(names):
                found.notes.append(f'{path}: nc is {count}, but there are {len(names)} names, which are used')
            return names
        if not is_data and 'names' in settings:
            with suppress(AnnotationError):
                return names_in(settings, path)
    for path in tree.files:
        if path.name.lower() in NAMES:
            names = dict(enumerate(line.strip() for line in read_text(path).splitlines() if line.strip()))
            check_unique(names.values(), f'{path}')
            return names
    return {}
