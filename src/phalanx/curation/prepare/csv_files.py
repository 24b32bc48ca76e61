"""Tables of comma-separated values with a line for each box, or for each image and its text or HTML."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path

from phalanx.curation.prepare.bitmaps import bitmap_instance, decode_png, decode_rows, runs_instance
from phalanx.curation.prepare.html_tables import tokenize_table
from phalanx.curation.prepare.json_files import parse_via_cells, via_instance
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample, SplitName
from phalanx.curation.prepare.tree import IMAGES, Tree, read_bytes, read_records, read_text
from phalanx.data.checks import AnnotationError, check_floats, parse_json, parse_number
from phalanx.data.shapes import Box, runs

# Names of columns in lower case without `_`, ` ` and `-`, the likeliest first.
NAMED = {
    'image': 'filename imagepath imagename imagefile image img file path imageid name id imageidclassid',
    'cx': 'xcenter centerx xc cx',
    'cy': 'ycenter centery yc cy',
    'x0': 'xmin x1 x0 left bboxx x',
    'y0': 'ymin y1 y0 top bboxy y',
    'x1': 'xmax x2 right',
    'y1': 'ymax y2 bottom',
    'width': 'boxwidth bboxwidth bboxw w width',
    'height': 'boxheight bboxheight bboxh h height',
    'label': 'class classname label labelname category object name celltype',
    'box': 'bbox boundingbox',
    'runs': 'encodedpixels rle annotation',
    'number': 'classid categoryid labelid',
    'bitmap': 'maskpath maskid',
    'region': 'regionshapeattributes',
    'attributes': 'regionattributes',
    'group': 'isgroupof',
    'text': 'text words word transcription transcript gt groundtruth sentence plate caption label',
    'html': 'html table structure',
    'split': 'split subset set usage',
}
NUMBERS = {'cx', 'cy', 'x0', 'y0', 'x1', 'y1', 'width', 'height'}
OBJECTS = {'x0', 'cx', 'box', 'runs', 'bitmap', 'region'}  # columns that mark an object
USUAL = 'filename, xmin, ymin, xmax, ymax, class'  # columns of a table with a line for each box
CODE = re.compile(r'/[a-z]/\w+$')  # of a class of Open Images
PIXELS, SHARES = 'pixels', 'shares'
MOST_SHARE = 2  # a box in shares may leave its image a little, and is clipped
TRIED = 10  # lines that are looked at for the names of images
MEASURED = 1000  # lines whose boxes show the unit of the file
BARE = (  # columns of files without a header
    ('image', 'x0', 'y0', 'x1', 'y1', 'label'),  # RetinaNet
    ('label', 'x0', 'y0', 'width', 'height', 'image', '', ''),  # makesense.ai, with the size of the image
    ('split', 'image', 'label', 'x0', 'y0', '', '', 'x1', 'y1', '', ''),  # Vertex AI (AutoML)
)


def find_csv(tree: Tree, found: AnnotationSet) -> None:
    """All CSV and TSV files with a column of images: boxes, Kaggle's run lengths, bitmaps of Open Images, regions of VIA."""
    marked: dict[Path, tuple[SplitName, list[Instance]]] = {}
    lists = [_class_rows(path) for path in tree.having('.csv') if 'class' in path.stem.lower()]
    names = {row[0]: row[1].strip() for rows in lists for row in rows if len(row) == 2 and CODE.match(row[0])}
    found.class_names = _class_order(lists)
    for path in tree.having('.csv', '.tsv'):
        with found.left_out.catch(), tree.doubting(path):
            _read_file(path, names, tree, found, marked)
    if any(instances for _, instances in marked.values()) and found.samples:  # of another file, about whole images
        found.notes.append(f'texts or labels of whole images beside objects, not used: {len(found.samples)}')
        found.samples.clear()
    texts = [sample.text for sample in found.samples]
    found.are_classes &= 2 * len(set(texts)) <= len(texts)  # few words again and again
    found.samples += [Sample(image, split, tuple(instances)) for image, (split, instances) in marked.items()]


def _read_file(
    path: Path, names: Mapping[str, str], tree: Tree, found: AnnotationSet, marked: dict[Path, tuple[SplitName, list[Instance]]]
) -> None:
    """Add the rows of a file, one after the other: Open Images has 14 million. `names`: of classes, by their codes.

    Raises AnnotationError for a file that is damaged somewhere; then its images are not used, as they may have more objects.
    """
    rows = _rows(path, tree, found)
    first = list(islice(rows, MEASURED))
    unit, images = _unit(row for _, row in first), dict[str, Path]()
    try:
        for number, row in chain(first, rows):
            with found.left_out.catch():
                where, name = f'{path}:{number}', row['image']
                image = images.get(name) or images.setdefault(name, tree.image(name, path, where))
                with found.dropping(image):
                    label = row.get('label') or (f'class_{row["number"]}' if row.get('number') else '')
                    _add(row | {'label': names.get(label, label), 'unit': unit}, where, path, image, tree, found, marked)
    except AnnotationError:
        found.dropped.update(images.values())
        raise


def _class_order(lists: Iterable[list[list[str]]]) -> tuple[str, ...]:
    """Class names by the numbers behind them in RetinaNet's `classes.csv`; empty without such a file."""
    for rows in lists:
        numbers = {row[1].strip(): row[0].strip() for row in rows if len(row) == 2}
        if rows and numbers.keys() == {str(number) for number in range(len(rows))}:
            return tuple(numbers[str(number)] for number in range(len(rows)))
    return ()


def _class_rows(path: Path) -> list[list[str]]:
    """Rows of a file that names classes: RetinaNet's, or that of Open Images, which FiftyOne calls `classes.csv`, too."""
    return [row for _, row in read_records(read_text(path), ',', path) if any(row)]


def _add(
    row: Mapping[str, str],
    where: str,
    path: Path,
    image: Path,
    tree: Tree,
    found: AnnotationSet,
    marked: dict[Path, tuple[SplitName, list[Instance]]],
) -> None:
    if row.get('region', '').strip() == '{}':  # of VIA, which lists images that nobody looked at alike
        return
    if OBJECTS & row.keys():
        if image not in marked:
            marked[image] = tree.split_of(path, row.get('split', '')), []
        instance = _instance(row, tree, path, image, where)
        if instance is not None:
            marked[image][1].append(instance)
    elif 'html' in row:
        found.samples.append(Sample(image, tree.split_of(path, row.get('split', '')), table=tokenize_table(row['html'], where)))
    else:
        found.samples.append(Sample(image, tree.split_of(path, row.get('split', '')), text=row['text']))
        found.are_classes |= bool(row['text']) and row.get('label') == row['text']  # a column called `label`


def _instance(row: Mapping[str, str], tree: Tree, path: Path, image: Path, where: str) -> Instance | None:
    """Object of a line; None for a line that names an image that shows nothing. Raises AnnotationError."""
    label, size = row['label'], tree.size(image)
    if 'region' in row:
        return via_instance(parse_via_cells(row['region'], row.get('attributes', '{}'), where), size, where)
    if 'runs' in row:
        return _pixels(label, row, size, where) if row['runs'] else None
    if 'bitmap' in row:
        mask = tree.image(f'{row["bitmap"]}', path, where)
        return bitmap_instance(label, decode_png(read_bytes(mask), size, where, stretch=True), 0, 0, size, where)
    text = row.get('text') if row.get('text') != row.get('label') else None
    if not any(row.get(key) for key in ('x0', 'cx', 'box')):
        if label:
            raise AnnotationError(
                f'{where}: is of class {label!r}, but has no box; leave both empty if its image shows nothing'
            )
        return None
    return Instance(label, _box(row, size, where), text=text, ignored=row.get('group') == '1')


def _pixels(label: str, row: Mapping[str, str], size: tuple[int, int], where: str) -> Instance:
    """Object of Kaggle's pairs of a first pixel, from 1 on, and a length. Raises AnnotationError.

    Pixels are numbered column by column, but row by row in Sartorius' competition, whose lines have the size of the image.
    """
    numbers = [int(parse_number(word, where)) for word in row['runs'].split()]
    lengths, end = list[int](), 1
    for start, length in zip(numbers[::2], numbers[1::2], strict=False):
        lengths += [start - end, length]
        end = start + length
    if len(numbers) % 2 or min(lengths) < 0 or end - 1 > size[0] * size[1]:
        raise AnnotationError(f'{where}: its run lengths overlap or do not fit an image of {size[0]} x {size[1]} pixels')
    lengths.append(size[0] * size[1] - end + 1)
    if not row.get('rows'):
        return runs_instance(label, runs(lengths, size, where), size, where)
    if tuple(int(parse_number(row.get(side), where)) for side in ('width', 'height')) != size:
        raise AnnotationError(f'{where}: was made for {row.get("width")} x {row.get("height")} pixels, its image has {size}')
    return bitmap_instance(label, decode_rows(lengths, *size, where), 0, 0, size, where)


def _box(row: Mapping[str, str], size: tuple[int, int], where: str) -> Box:
    """Box of a line in pixels. Raises AnnotationError, also for one in another unit than the first boxes of the file."""
    x0, y0, x1, y1 = corners = _corners(row, where)
    if ('x1' in row or 'box' in row) and row.get('width') and row.get('height'):  # of the image, or once more of the box
        stated = tuple(round(parse_number(row[side], f'{where}: {side}')) for side in ('width', 'height'))
        if stated not in (size, (round(x1 - x0), round(y1 - y0))):
            raise AnnotationError(
                f'{where}: was made for {stated[0]} x {stated[1]} pixels, its image has {size[0]} x {size[1]}'
            )
    shown = f'{where}: the box {x0:g}, {y0:g}, {x1:g}, {y1:g}'
    if row['unit'] == SHARES:
        if max(corners) > MOST_SHARE:
            raise AnnotationError(f'{shown} is in pixels, the first boxes of the file are in shares of the image, from 0 to 1')
        return x0 * size[0], y0 * size[1], x1 * size[0], y1 * size[1]
    if _is_share(corners):
        raise AnnotationError(f'{shown} is in shares of the image, from 0 to 1, the first boxes of the file are in pixels')
    return corners


def _corners(row: Mapping[str, str], where: str) -> Box:
    """Box of a line in the unit of the file. Raises AnnotationError."""

    def numbers(*keys: str) -> list[float]:
        return [parse_number(row.get(key), f'{where}: {key}') for key in keys]

    if 'box' in row:  # `[x, y, width, height]`, as in Kaggle's competitions
        x, y, width, height = check_floats(parse_json(row['box'], where), 4, f'{where}: bbox')
        return x, y, x + width, y + height
    if 'cx' in row:
        x, y, width, height = numbers('cx', 'cy', 'width', 'height')
        return x - width / 2, y - height / 2, x + width / 2, y + height / 2
    if 'x1' in row:
        x0, y0, x1, y1 = numbers('x0', 'y0', 'x1', 'y1')
        return x0, y0, x1, y1
    x, y, width, height = numbers('x0', 'y0', 'width', 'height')
    return x, y, x + width, y + height


def _unit(rows: Iterable[Mapping[str, str]]) -> str:
    """SHARES if most of these boxes are in shares of the image, as Open Images has them, else PIXELS."""
    boxes = list[Box]()
    for row in rows:
        with contextlib.suppress(AnnotationError):  # reported with its line later
            boxes.append(_corners(row, ''))
    return SHARES if 2 * sum(map(_is_share, boxes)) > len(boxes) else PIXELS


def _is_share(box: Box) -> bool:
    """True for a box in shares of the image, for no box of an image is a pixel; one without area has no unit."""
    x0, y0, x1, y1 = box
    return min(box) >= 0 and max(box) <= 1 and x0 < x1 and y0 < y1


def _rows(path: Path, tree: Tree, found: AnnotationSet) -> Iterator[tuple[int, dict[str, str]]]:
    """The number and the known columns of each line, where a column names images and another says something of them."""
    text = read_text(path)
    first = text.partition('\n')[0]
    delimiter = max(',;\t', key=first.count)
    lines = read_records(text, delimiter, path)
    header = next(lines, (1, []))[1]
    if {'annotation_id', 'annotator'} <= {*header}:  # Label Studio's
        return
    tried = list(islice(lines, TRIED))
    columns, body = _columns(header, [line for _, line in tried], tree), chain(tried, lines)
    alike = [one for one in BARE if len(one) == len(header) and tree.has_image(header[one.index('image')])]
    if alike and not OBJECTS & columns.keys():
        columns, body = {key: place for place, key in enumerate(alike[0]) if key}, chain([(1, header)], body)
    if 'image' not in columns and any(_is_image(cell, tree) for cell in header):
        found.notes.append(f'{path}: its first line names an image and no columns, such as {USUAL}')
    if 'image' in columns and not columns.keys() & {*OBJECTS, 'text', 'html'}:
        listed = ', '.join(header)
        found.notes.append(
            f'{path}: names images, but no column marks an object or a text, such as {USUAL}; it has {listed:.200}'
        )
    if 'image' not in columns or not columns.keys() & {*OBJECTS, 'text', 'html'}:
        return
    plain = _plain(header)
    if not alike and (unused := [name for place, name in enumerate(header) if name.strip() and place not in columns.values()]):
        found.notes.append(f'{path}: columns that are not used: {", ".join(unused):.200}')
    joined = 'imageidclassid' in plain  # Kaggle's `0002cc93b.jpg_1`
    by_rows = 'runs' in columns and plain[columns['runs']] == 'annotation'
    for number, line in body:
        if any(line):
            row = {key: line[place].strip() if place < len(line) else '' for key, place in columns.items()}
            if delimiter != ',':  # tables of countries whose decimals have a comma
                row |= {key: re.sub(r'^(-?\d+),(\d+)$', r'\1.\2', row[key]) for key in row.keys() & NUMBERS}
            if by_rows:
                row['rows'] = 'yes'
            image, joint, label = row['image'].rpartition('_')
            yield number, row | {'image': image, 'label': f'class_{label}'} if joined and joint else row


def _columns(header: list[str], lines: list[list[str]], tree: Tree) -> dict[str, int]:
    """The place of each known column. Of several that may name images, the first that does in some of the first lines."""
    names = _plain(header)
    columns = {}
    for key, known in NAMED.items():
        places = [names.index(name) for name in known.split() if name in names]
        # of V7, a `mask_id` is a file; other tools number their masks
        doubtful = [p for p in places if key == 'image' or names[p] == 'maskid']
        places = [p for p in places if p not in doubtful or any(p < len(line) and _is_image(line[p], tree) for line in lines)]
        if key == 'image' and not places:  # by its content
            width = min(map(len, lines), default=0)
            unnamed = [p for p in range(min(width, len(header))) if not _is_image(header[p], tree)]
            places = [p for p in unnamed if all(_is_image(line[p], tree) for line in lines)]
        if places:
            columns[key] = places[0]
    if 'x0' in columns and ('x1' not in columns) and ('width' not in columns):
        columns.pop('x0')
    if 'annotation' in names and 'encodedpixels' not in names and not {'width', 'height'} <= columns.keys():
        columns.pop('runs')  # a column called `annotation`, without the size of the image, may hold anything
    return columns


def _plain(header: list[str]) -> list[str]:
    return [''.join(filter(str.isalnum, name.lower())) for name in header]


def _is_image(name: str, tree: Tree) -> bool:
    name = re.sub(r'(\.\w+)_\d+$', r'\1', name)  # the image of Kaggle's `0002cc93b.jpg_1`
    return bool(name) and any(tree.has_image(f'{name}{suffix}') for suffix in ('', *IMAGES))
