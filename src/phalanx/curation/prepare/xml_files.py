"""Annotations of Pascal VOC: an XML file per image."""

from pathlib import Path
from xml.etree import ElementTree

from phalanx.curation.prepare.checks import AnnotationError, parse_number
from phalanx.curation.prepare.samples import Found, Sample, Thing
from phalanx.curation.prepare.tree import Tree, read_bytes, read_text
from phalanx.data.folders import decode_xml


def read_voc(tree: Tree, found: Found) -> None:
    """Add the samples of XML files with root `annotation`; PaddleDetection's label_list.txt orders the classes."""
    for path in tree.files:
        if path.name.lower() == 'label_list.txt':
            found.class_names = tuple(dict.fromkeys(line.strip() for line in read_text(path).splitlines() if line.strip()))
    for path, root in parse_xml(tree, 'annotation', found):
        with found.left_out.catch():
            name = (root.findtext('filename') or '').strip()
            own = f'{path.stem}{Path(name).suffix}'  # files get renamed without their content
            image = tree.image(own if tree.has_image(own) else name or own, path, f'{path}')
            things = [_voc_thing(element, f'{path}: object {n}') for n, element in enumerate(root.findall('object'), 1)]
            found.samples.append(Sample(image, tree.split_of(path), tuple(things)))


def _voc_thing(element: ElementTree.Element, where: str) -> Thing:
    label = (element.findtext('name') or '').strip()
    if not label:
        raise AnnotationError(f'{where}: has no name')
    corners = [element.findtext(f'bndbox/{name}') for name in ('xmin', 'ymin', 'xmax', 'ymax')]
    x0, y0, x1, y1 = (parse_number(text, f'{where}: bndbox') for text in corners)
    return Thing(label, (x0, y0, x1, y1), ignored=(element.findtext('difficult') or '0').strip() not in ('0', ''))


def parse_xml(tree: Tree, tag: str, found: Found) -> list[tuple[Path, ElementTree.Element]]:
    """Parse the XML files whose root has the tag; files with other roots are not of this format."""
    files = []
    for path in tree.having('.xml'):
        with found.left_out.catch():
            try:
                text = decode_xml(read_bytes(path))
            except ValueError as error:
                raise AnnotationError(f'{path}: {error}') from None
            if '<!DOCTYPE' in text or '<!ENTITY' in text:  # entities can grow without bound, or read other files
                raise AnnotationError(f'{path}: has a document type; annotations need none, remove it')
            try:
                root = ElementTree.fromstring(text)
            except ElementTree.ParseError as error:
                raise AnnotationError(f'{path}: is not well-formed XML ({error})') from None
            if root.tag == tag:
                files.append((path, root))
    return files
