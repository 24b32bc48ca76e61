"""Lines of pages in PAGE-XML and ALTO, as OCR programs and editors of transcripts write them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from phalanx.curation.prepare.samples import AnnotationSet
from phalanx.curation.prepare.text_pages import (
    NO_OUTLINE,
    Line,
    Page,
    add_pages,
    count_turns,
    join_words,
    parse_outline,
    parse_points,
)
from phalanx.curation.prepare.tree import Tree, read_bytes
from phalanx.data.checks import AnnotationError, parse_number
from phalanx.data.folders import parse_xml
from phalanx.data.shapes import bounding_box, corners_of
from phalanx.data.texts import parse_coordinates

NO_LINES = 'has regions, but not one line; let an OCR program or an editor of transcripts find the lines, too'


def find_page_xml(tree: Tree, found: AnnotationSet) -> None:
    """Add the lines of PAGE-XML, by Transkribus, eScriptorium, kraken, OCR-D, Aletheia or Tesseract."""
    _find('PcGts', _pages_of_page_xml, tree, found)


def find_alto(tree: Tree, found: AnnotationSet) -> None:
    """Add the lines of ALTO, by ABBYY FineReader, eScriptorium, kraken, docWorks or Tesseract."""
    _find('alto', _pages_of_alto, tree, found)


def _find(tag: str, pages_of: Callable[[Element, str], list[Page]], tree: Tree, found: AnnotationSet) -> None:
    sources = dict[Path, Path]()
    for path in tree.having('.xml'):
        with found.left_out.catch():
            data = read_bytes(path)
            if tag.encode() not in data.replace(b'\0', b''):  # also in UTF-16
                continue
            root = parse_xml(data, path)
            for element in root.iter():
                element.tag = element.tag.rpartition('}')[2]  # each version has a namespace
            if root.tag == tag:
                add_pages(pages_of(root, f'{path}'), path, tree, found, sources)


def _size(element: Element, width: str, height: str, where: str) -> tuple[int | None, int | None]:
    """Size of a page; None for 0, which programs write that do not know it."""
    sides = (round(parse_number(element.get(name, '0'), f'{where}: {name}')) or None for name in (width, height))
    return next(sides), next(sides)


def _pages_of_page_xml(root: Element, where: str) -> list[Page]:
    return [
        Page(page.get('imageFilename', ''), _size(page, 'imageWidth', 'imageHeight', where), _lines_of_page_xml(page, where))
        for page in root.iter('Page')
    ]


def _lines_of_page_xml(page: Element, where: str) -> Iterator[Line]:
    """Lines, and regions whose text is not divided into lines, which are ignored."""
    regions = list(page.iter('TextRegion'))
    if regions and page.find('.//TextLine') is None:
        raise AnnotationError(f'{where}: {NO_LINES}')
    for region in regions:
        lines = region.findall('TextLine')
        is_undivided = region.find('.//TextLine') is None and bool(_text(region).strip())
        for element in [region] if is_undivided else lines:
            place = f'{where}: {element.tag} {element.get("id")}'
            text, baseline = _text(element), element.find('Baseline')
            turns = _turns('' if baseline is None else baseline.get('points', ''), region.get('orientation', ''), text)
            yield Line(place, text, parse_outline(_drawn(element), place), is_undivided, turns)


def _drawn(element: Element) -> str:
    """Points of the outline of a part of PAGE-XML; empty without an outline."""
    coords = element.find('Coords')
    corners = [] if coords is None else [f'{point.get("x")},{point.get("y")}' for point in coords]  # of 2010 and before
    return ' '.join(corners) or ('' if coords is None else coords.get('points', ''))


def _turns(baseline: str, degrees: str, text: str) -> int:
    """Quarters counter-clockwise by which a text is turned, by its baseline, or else by the angle of its region."""
    points, angles = parse_points(baseline), parse_coordinates([degrees])
    return count_turns(points, text) if len(points) > 1 else round(angles[0] / 90) % 4 if angles else 0


def _text(element: Element) -> str:
    """Text of a part of PAGE-XML: the first of its alternatives, or else that of its words or characters."""
    alternatives = sorted(element.findall('TextEquiv'), key=_rank)
    if alternatives and (text := alternatives[0].findtext('Unicode')):
        return text
    characters = ''.join(map(_text, element.findall('Glyph')))
    return characters or join_words((_text(word), _box_around(word)) for word in element.findall('Word'))


def _box_around(word: Element) -> Sequence[float]:
    try:
        return bounding_box(parse_outline(_drawn(word), ''))
    except AnnotationError:
        return ()


def _rank(alternative: Element) -> int:
    index = alternative.get('index', '')
    return int(index) if index.isdecimal() else 0


def _pages_of_alto(root: Element, where: str) -> list[Page]:
    name, unit = ((root.findtext(f'.//{tag}') or '').strip() for tag in ('fileName', 'MeasurementUnit'))
    return [
        Page(name, _size(page, 'WIDTH', 'HEIGHT', where), _lines_of_alto(page, where), unit or 'pixel')
        for page in root.iter('Page')
    ]


def _lines_of_alto(page: Element, where: str) -> Iterator[Line]:
    if page.find('.//TextLine') is None and page.find('.//TextBlock') is not None:
        raise AnnotationError(f'{where}: {NO_LINES}')
    angles = {line: block.get('ROTATION', '') for block in page.iter('TextBlock') for line in block.iter('TextLine')}
    for line in page.iter('TextLine'):
        place = f'{where}: TextLine {line.get("ID")}'
        drawn, box = line.find('Shape/Polygon'), _box(line)
        if drawn is None and not box:
            raise AnnotationError(f'{place}: {NO_OUTLINE}')
        points = corners_of(*box) if drawn is None else parse_outline(drawn.get('POINTS', ''), place)
        text = _text_of_alto(line)
        yield Line(place, text, points, turns=_turns(line.get('BASELINE', ''), angles.get(line, ''), text))


def _box(element: Element) -> list[float]:
    """Box x0, y0, x1, y1 of a part of ALTO; empty if the file does not have all of it."""
    box = parse_coordinates([element.get(name, '') for name in ('HPOS', 'VPOS', 'WIDTH', 'HEIGHT')])
    return [box[0], box[1], box[0] + box[2], box[1] + box[3]] if box else []


def _text_of_alto(line: Element) -> str:
    """Text as it is printed on the line: a hyphenated word without its other half, which SUBS_CONTENT has, too."""
    if line.find('SP') is not None:
        text = ''.join(' ' if part.tag == 'SP' else part.get('CONTENT', '') for part in line if part.tag in ('String', 'SP'))
    else:
        text = join_words((part.get('CONTENT', ''), _box(part)) for part in line.findall('String'))
    hyphen = line.find('HYP')
    mark = '' if hyphen is None else (hyphen.get('CONTENT') or '-').replace('\u00ad', '-')
    return text if text.endswith(mark) else text + mark
