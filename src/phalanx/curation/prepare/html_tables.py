"""Tables as HTML, in the tokens of PubTabNet: a file beside each image, or lines of JSON in its own format."""

import json
from html import escape
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

from phalanx.curation.prepare import hocr
from phalanx.curation.prepare.samples import AnnotationSet, Sample
from phalanx.curation.prepare.tree import Tree, read_lines, read_text
from phalanx.data.checks import AnnotationError, get_member, parse_json, shorten
from phalanx.data.tables import parse_annotation

INLINE = ('b', 'i', 'sup', 'sub', 'u', 'strong', 'em')  # tags that are kept as part of the text
BREAKS = ('br', 'p', 'div', 'span', 'a', 'font', 'small')  # tags within a cell that are left out
OUTER = ('table', 'html', 'head', 'body', 'title', 'meta', 'colgroup', 'col', 'caption', 'style', 'tfoot')
MOST_SPAN = 100
MOST_CELLS = 500  # in a row or column
ORDERED = ('start_row', 'start_col', 'end_row', 'end_col')  # of cells in SciTSR, counted from 0
PLACES = {*ORDERED, 'content'}


def find_html(tree: Tree, found: AnnotationSet) -> None:
    """Files .html and .htm that are named like an image."""
    for path in tree.having('.html', '.htm'):
        with found.left_out.catch():
            text = read_text(path)
            if hocr.PAGE in text:
                continue
            image = tree.image(path.stem, path, f'{path}')
            found.samples.append(Sample(image, tree.split_of(image), table=tokenize_table(text, f'{path}')))


def find_pubtabnet(tree: Tree, found: AnnotationSet) -> None:
    """Files .jsonl with an object a line: `filename` and `html`, which is an object of PubTabNet's or text; also `split`."""
    for path in tree.having('.jsonl', '.json', '.ndjson'):
        if path.suffix == '.json' and path in tree.jsons:
            continue
        with found.left_out.catch():
            for number, line in enumerate(read_lines(path), 1):
                if line.strip():
                    with found.left_out.catch():
                        content = parse_json(line, f'{path}:{number}')
                        if isinstance(content, dict) and {'filename', 'html'} <= content.keys():
                            found.samples.append(_parse_entry(content, f'{path}:{number}', path, tree))
                        elif number == 1:  # lines of another format, of which there may be millions
                            break


def _parse_entry(content: dict[str, Any], where: str, path: Path, tree: Tree) -> Sample:
    name = str(content['filename'])
    if name.lower().endswith('.pdf'):  # of FinTabNet, with boxes in points from the bottom of a page of several tables
        raise AnnotationError(
            f'{where}: is about a page of {shorten(name)}; cut its tables out as images, which `filename` names, with boxes of '
            'cells in their pixels'
        )
    image = tree.image(name, path, where)
    split = tree.split_of(path, str(content.get('split')))
    html = content['html']
    if isinstance(html, str):
        return Sample(image, split, table=tokenize_table(html, where))
    parse_annotation(content, where)
    table = {'structure': {'tokens': html['structure']['tokens']}, 'cells': html['cells']}
    return Sample(image, split, table=json.dumps(table, ensure_ascii=False))


def find_scitsr(tree: Tree, found: AnnotationSet) -> None:
    """Files NAME.json with the cells of a table by row and column."""
    for path, content in tree.jsons.items():
        cells = content.get('cells') if isinstance(content, dict) else None
        if isinstance(cells, list) and cells and isinstance(cells[0], dict) and cells[0].keys() >= PLACES:
            with found.left_out.catch():
                image = tree.image(path.stem, path, f'{path}')
                table = tokenize_table(_compose_html(cells, f'{path}'), f'{path}')
                found.samples.append(Sample(image, tree.split_of(path) or tree.split_of(image), table=table))


def _compose_html(cells: list[Any], where: str) -> str:
    """HTML of a table of which each place is in one cell; places without a cell are empty. Raises AnnotationError."""
    begins, taken = dict[tuple[int, int], str](), set[tuple[int, int]]()
    for number, cell in enumerate(cells):
        row, column, last_row, last_column = (get_member(cell, key, int, f'{where}: cell {number}') for key in ORDERED)
        if not 0 <= row <= last_row < MOST_CELLS or not 0 <= column <= last_column < MOST_CELLS:
            raise AnnotationError(
                f'{where}: cell {number}: cannot be in rows {row} to {last_row}, columns {column} to {last_column}'
            )
        places = {*product(range(row, last_row + 1), range(column, last_column + 1))}
        if places & taken:
            raise AnnotationError(f'{where}: cell {number}: overlaps with another one in row {row}, column {column}')
        taken |= places
        words = get_member(cell, 'content', list, f'{where}: cell {number}')
        if not all(isinstance(word, str) for word in words):
            raise AnnotationError(f'{where}: cell {number}: content: expected a list of words, got {shorten(words)}')
        begins[row, column] = (
            f'<td rowspan="{last_row - row + 1}" colspan="{last_column - column + 1}">{escape(" ".join(words))}</td>'
        )
    rows, columns = (1 + max(places) for places in zip(*taken, strict=True))
    begins |= dict.fromkeys({*product(range(rows), range(columns))} - taken, '<td></td>')
    return '<tr>'.join(['<table>', *(''.join(begins.get((row, n), '') for n in range(columns)) for row in range(rows))])


def tokenize_table(html: str, where: str) -> str:
    """The structure and the cells of the only table in `html`, as JSON. Raises AnnotationError."""
    parser = _Parser(where)
    parser.feed(html)
    parser.close()
    for tag in ('tr', 'thead', 'tbody'):
        parser.end_of(tag)
    if not parser.cells:
        raise AnnotationError(f'{where}: has no table with cells')
    return json.dumps({'structure': {'tokens': parser.tokens}, 'cells': parser.cells}, ensure_ascii=False)


class _Parser(HTMLParser):
    """Forgives what browsers forgive: tags that are not closed, `<th>`, rows outside of `<tbody>`."""

    def __init__(self, where: str) -> None:
        super().__init__(convert_charrefs=True)
        self.where, self.tokens, self.cells = where, list[str](), list[dict[str, Any]]()
        self.open: list[str] = []  # of thead, tbody, tr, td
        self.tables = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        tag = 'td' if tag == 'th' else tag
        if tag == 'table':
            self.tables += 1
            if self.tables > 1:
                raise AnnotationError(f'{self.where}: has a second table, or a table within a cell')
        elif tag in ('thead', 'tbody'):
            for other in ('td', 'tr', 'thead', 'tbody'):
                self.end_of(other)
            self._begin(tag)
        elif tag == 'tr':
            self.end_of('tr')
            if not {'thead', 'tbody'} & {*self.open}:
                self._begin('tbody')
            self._begin('tr')
        elif tag == 'td':
            self.end_of('td')
            if 'tr' not in self.open:
                raise AnnotationError(f'{self.where}: has a cell outside of a row')
            self._begin_cell(dict(attrs))
        elif tag in INLINE and 'td' in self.open:
            self.cells[-1]['tokens'].append(f'<{tag}>')
        elif tag not in (*INLINE, *BREAKS, *OUTER):
            raise AnnotationError(f'{self.where}: has a tag <{tag}>, which no table of training data has')

    def _begin(self, tag: str) -> None:
        self.open.append(tag)
        self.tokens.append(f'<{tag}>')

    def _begin_cell(self, attributes: dict[str, str | None]) -> None:
        spans = []
        for name in ('rowspan', 'colspan'):
            text = (attributes.get(name) or '1').strip()
            if not text.isdecimal() or not 1 <= int(text) <= MOST_SPAN:
                raise AnnotationError(f'{self.where}: {name}={text!r} is not a number from 1 to {MOST_SPAN}')
            spans += [f' {name}="{int(text)}"'] if int(text) > 1 else []
        self.tokens += ['<td', *spans, '>'] if spans else ['<td>']
        self.open.append('td')
        self.cells.append({'tokens': []})

    def handle_endtag(self, tag: str) -> None:
        tag = 'td' if tag == 'th' else tag
        if tag in ('td', 'tr', 'thead', 'tbody'):
            self.end_of(tag)
        elif tag in INLINE and 'td' in self.open:
            self.cells[-1]['tokens'].append(f'</{tag}>')

    def end_of(self, tag: str) -> None:
        """Closes what is open from `tag` inwards."""
        while tag in self.open:
            self.tokens.append(f'</{self.open.pop()}>')

    def handle_data(self, data: str) -> None:
        if 'td' in self.open:
            self.cells[-1]['tokens'] += list(' '.join(data.split('\n')).strip('\r'))
        elif data.strip() and 'tr' in self.open:
            raise AnnotationError(f'{self.where}: has text outside of cells: {shorten(data.strip())}')
