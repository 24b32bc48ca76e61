"""Lines of pages in hOCR: HTML with properties of pages, lines and words in titles (`bbox 0 0 9 9; poly ..; image "a.png"`)."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from phalanx.curation.prepare.samples import AnnotationSet
from phalanx.curation.prepare.text_pages import Line, Page, add_pages, parse_outline
from phalanx.curation.prepare.tree import Tree, read_text
from phalanx.data.checks import AnnotationError, shorten
from phalanx.data.shapes import corners_of
from phalanx.data.texts import parse_coordinates

PAGE = 'ocr_page'  # class of pages, which no other HTML has
LINES = {'ocr_line', 'ocrx_line', 'ocr_textfloat', 'ocr_header', 'ocr_footer', 'ocr_caption'}  # Tesseract writes three more


def find_hocr(tree: Tree, found: AnnotationSet) -> None:
    """Add the lines of hOCR, by Tesseract, kraken, docTR or OCRopus."""
    sources = dict[Path, Path]()
    for path in tree.having('.hocr', '.html', '.htm', '.xhtml'):
        with found.left_out.catch():
            text = read_text(path)
            if PAGE in text:
                parser = _Parser(f'{path}')
                parser.feed(text)
                parser.close()
                add_pages(parser.pages, path, tree, found, sources)


class _Parser(HTMLParser):
    def __init__(self, where: str) -> None:
        super().__init__(convert_charrefs=True)
        self.where, self.pages = where, list[Page]()
        self.lines: list[tuple[dict[str, str], list[str]]] = []  # of the page: first, what stands outside of lines
        self.tag, self.depth = '', 0  # of the open line; how many elements with its tag are open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or '' for name, value in attrs}
        classes = {*values.get('class', '').split()}
        listed = re.findall(r'\b(\w+)\s+((?:"[^"]*"|[^;"])*)', values.get('title', ''))
        properties = {name: value.strip().strip('"\'') for name, value in listed}
        if classes & {'alternatives', 'ocr_symbol'} or values.get('id', '').startswith('lstm_choices'):
            raise AnnotationError(f'{self.where}: has several texts for one place; write one (lstm_choice_mode 0 of Tesseract)')
        if PAGE in classes:
            box = [round(value) for value in parse_coordinates(properties.get('bbox', '').split())]
            size = (box[2], box[3]) if len(box) == 4 and box[:2] == [0, 0] else (None, None)
            self.lines = [({}, [])]
            self.pages.append(Page(properties.get('image', ''), size, _lines(self.lines, self.where)))
        elif classes & LINES and self.lines:
            if self.depth and not ''.join(self.lines[-1][1]).strip():
                self.lines.pop()  # a header of several lines
            self.lines.append((properties, []))
            self.tag, self.depth = tag, 1
        elif self.depth:
            self.depth += tag == self.tag
            if 'ocrx_word' in classes:
                self.lines[-1][1].append(' ')  # docTR writes none between words

    def handle_endtag(self, tag: str) -> None:
        self.depth -= bool(self.depth) and tag == self.tag

    def handle_data(self, data: str) -> None:
        if self.lines:
            self.lines[-1 if self.depth else 0][1].append(data)


def _lines(parsed: list[tuple[dict[str, str], list[str]]], where: str) -> Iterator[Line]:
    (_, outside), *lines = parsed
    if text := ' '.join(''.join(outside).split()):
        raise AnnotationError(f'{where}: has text outside of lines ({shorten(text)}); lines are elements `ocr_line`')
    for number, (properties, texts) in enumerate(lines, 1):
        box = parse_coordinates(properties.get('bbox', '').split())
        corners = ' '.join(f'{x} {y}' for x, y in (corners_of(*box) if len(box) == 4 else ()))
        place = f'{where}: line {number}'
        angles = parse_coordinates([properties.get('textangle', '')])
        turns = round(angles[0] / 90) % 4 if angles else 0
        yield Line(place, ''.join(texts), parse_outline(properties.get('poly', corners), place), turns=turns)
