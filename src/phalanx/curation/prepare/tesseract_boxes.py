"""Lines of pages in the files NAME.box that Tesseract is trained with: a line of text each (WordStr), or its characters."""

from collections.abc import Iterator
from pathlib import Path

from phalanx.curation.prepare.samples import AnnotationSet
from phalanx.curation.prepare.text_pages import Line, Page, add_pages, find_image
from phalanx.curation.prepare.tree import Tree, read_text
from phalanx.data.checks import AnnotationError, shorten
from phalanx.data.shapes import bounding_box, corners_of
from phalanx.data.texts import parse_coordinates

WORDSTR = 'WordStr '  # in place of a character before `x0 y0 x1 y1 page #text`


def find_tesseract_boxes(tree: Tree, found: AnnotationSet) -> None:
    """Add the lines of wordstrbox, lstmbox, text2image and tesstrain."""
    sources = dict[Path, Path]()
    for path in tree.having('.box'):
        with found.left_out.catch():
            height = tree.size(find_image('', path, tree))[1]
            add_pages([Page('', (None, None), _lines(read_text(path), height, f'{path}'))], path, tree, found, sources)


def _lines(content: str, height: int, where: str) -> Iterator[Line]:
    """Lines of a file, whose y counts from the bottom of the image. Raises AnnotationError."""
    characters, places = list[str](), list[list[float]]()
    for number, row in enumerate(content.split('\n'), 1):
        if not row.strip():
            continue
        place = f'{where}:{number}'
        start, mark, text = row.strip('\r').partition(' #') if row.startswith(WORDSTR) else (row.strip('\r'), '', '')
        character, *fields = start.rsplit(' ', 5)
        values = parse_coordinates(fields)
        if len(values) != 5:
            raise AnnotationError(f'{place}: expected a character, x0 y0 x1 y1 and a page, got {shorten(row)}')
        if values[4]:
            raise AnnotationError(f'{place}: is about page {values[4] + 1:.0f}; write an image and a file for each page')
        x0, y0, x1, y1 = values[:4]
        if character != '\t':
            characters.append(text if mark else character)
            places += [[x0, height - y1], [x1, height - y0]]
        elif characters:  # a tab ends a line
            yield Line(place, ''.join(characters), corners_of(*bounding_box(places)))
            characters, places = [], []
    if characters:
        cure = 'write lines with wordstrbox, lstmbox or alto (tesseract IMAGE NAME wordstrbox)'
        raise AnnotationError(f'{where}: has characters, and no tab that ends a line (makebox); {cure}')
