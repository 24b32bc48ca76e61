"""Tables of comma-separated values with a line for each box, or for each image and its text or HTML."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from phalanx.curation.prepare.checks import AnnotationError, parse_number
from phalanx.curation.prepare.html_tables import tokenize_table
from phalanx.curation.prepare.samples import Box, Found, Sample, SplitName, Thing
from phalanx.curation.prepare.tree import Tree, read_text

# Names of columns in lower case without `_`, ` ` and `-`, the likeliest first.
NAMED = {
    'image': 'filename imagepath imagename imagefile image img file path imageid name id',
    'x0': 'xmin x1 x0 left bboxx x',
    'y0': 'ymin y1 y0 top bboxy y',
    'x1': 'xmax x2 right',
    'y1': 'ymax y2 bottom',
    'width': 'boxwidth bboxwidth bboxw w width',
    'height': 'boxheight bboxheight bboxh h height',
    'label': 'class classname label labelname category object name',
    'text': 'text words word transcription transcript gt groundtruth sentence plate caption label',
    'html': 'html table structure',
    'split': 'split subset set usage',
}
BARE = ('image', 'x0', 'y0', 'x1', 'y1', 'label')  # the columns of a file without header, as RetinaNet has them


def find_csv(tree: Tree, found: Found) -> None:
    """All CSV and TSV files with a column of images."""
    boxes: dict[Path, tuple[SplitName, list[Thing]]] = {}
    for path in tree.having('.csv', '.tsv'):
        with found.left_out.catch():
            for number, row in _rows(path, tree):
                with found.left_out.catch():
                    _add(row, f'{path}:{number}', path, tree, found, boxes)
    found.samples += [Sample(image, split, tuple(things)) for image, (split, things) in boxes.items()]


def _add(
    row: Mapping[str, str], where: str, path: Path, tree: Tree, found: Found, boxes: dict[Path, tuple[SplitName, list[Thing]]]
) -> None:
    image = tree.image(row['image'], path, where)
    split = tree.split_of(path, row.get('split', ''))
    if 'x0' in row:
        things = boxes.setdefault(image, (split, []))[1]
        if any(row.get(key) for key in ('x0', 'label')):  # a line without both names an image that shows nothing
            text = row.get('text') if row.get('text') != row.get('label') else None
            things.append(Thing(row.get('label') or 'object', _box(row, tree.size(image), where), text=text))
    elif 'html' in row:
        found.samples.append(Sample(image, split, table=tokenize_table(row['html'], where)))
    else:
        found.samples.append(Sample(image, split, text=row['text']))


def _box(row: Mapping[str, str], size: tuple[int, int], where: str) -> Box:
    ends = ('x1', 'y1') if 'x1' in row else ('width', 'height')
    values = [parse_number(row.get(key), f'{where}: {key}') for key in ('x0', 'y0', *ends)]
    x0, y0, x1, y1 = values
    if ends[0] == 'width':
        x1, y1 = x0 + x1, y0 + y1
    if max(values) <= 1 and min(values) >= 0:  # shares of the image, as Open Images has them; no box is one pixel
        return x0 * size[0], y0 * size[1], x1 * size[0], y1 * size[1]
    return x0, y0, x1, y1


def _rows(path: Path, tree: Tree) -> Iterator[tuple[int, dict[str, str]]]:
    """The number and the known columns of each line, where a column names images and another says something of them."""
    text = read_text(path)
    first = text.partition('\n')[0]
    delimiter = max(',;\t', key=first.count)
    reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter)
    try:
        lines = list(reader)
    except csv.Error as error:
        raise AnnotationError(f'{path}:{reader.line_num}: is not CSV: {error}') from None
    if not lines:
        return
    columns = _columns(lines[0], lines[1:2], tree)
    body = enumerate(lines[1:], 2)
    if not columns and len(lines[0]) == len(BARE) and tree.has_image(lines[0][0]):
        columns, body = {key: place for place, key in enumerate(BARE)}, enumerate(lines, 1)
    if 'image' not in columns or not columns.keys() & {'x0', 'text', 'html'}:
        return
    for number, line in body:
        if any(line):
            yield number, {key: line[place].strip() if place < len(line) else '' for key, place in columns.items()}


def _columns(header: list[str], lines: list[list[str]], tree: Tree) -> dict[str, int]:
    """The place of each known column. Of several that may name images, the first whose first value is an image."""
    names = [''.join(filter(str.isalnum, name.lower())) for name in header]
    columns = {}
    for key, known in NAMED.items():
        places = [names.index(name) for name in known.split() if name in names]
        if key == 'image':
            places = [p for p in places if lines and p < len(lines[0]) and _is_image(lines[0][p], tree)]
        if places:
            columns[key] = places[0]
    if 'x0' in columns and ('x1' not in columns) and ('width' not in columns):
        columns.pop('x0')
    return columns


def _is_image(name: str, tree: Tree) -> bool:
    return bool(name) and any(tree.has_image(f'{name}{suffix}') for suffix in ('', '.jpg', '.png', '.jpeg'))
