"""Tables as HTML, in the tokens of PubTabNet: a file beside each image, or lines of JSON in its own format."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from phalanx.curation.prepare import hocr
from phalanx.curation.prepare.samples import AnnotationSet, Sample
from phalanx.curation.prepare.tree import Tree, read_lines, read_text
from phalanx.data.checks import AnnotationError, parse_json, shorten
from phalanx.data.tables import parse_annotation

INLINE = ('b', 'i', 'sup', 'sub', 'u', 'strong', 'em')  # tags that are kept as part of the text
BREAKS = ('br', 'p', 'div', 'span', 'a', 'font', 'small')  # tags within a cell that are left out
OUTER = ('table', 'html', 'head', 'body', 'title', 'meta', 'colgroup', 'col', 'caption', 'style', 'tfoot')
MOST_SPAN = 100


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
                        sample = _parse_line(line, f'{path}:{number}', path, tree)
                        found.samples += [sample] if sample else []


def _parse_line(line: bytes, where: str, path: Path, tree: Tree) -> Sample | None:
    content = parse_json(line, where)
    if not isinstance(content, dict) or 'filename' not in content or 'html' not in content:
        return None
    image = tree.image(str(content['filename']), path, where)
    split = tree.split_of(path, str(content.get('split')))
    html = content['html']
    if isinstance(html, str):
        return Sample(image, split, table=tokenize_table(html, where))
    parse_annotation(content, where)
    table = {'structure': {'tokens': html['structure']['tokens']}, 'cells': html['cells']}
    return Sample(image, split, table=json.dumps(table, ensure_ascii=False))


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
