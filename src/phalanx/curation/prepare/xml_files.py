"""Annotations of Pascal VOC: an XML file per image."""

import math
from pathlib import Path
from xml.etree import ElementTree

from phalanx.curation.prepare.bitmaps import bitmap_instance, decode_png
from phalanx.curation.prepare.checks import AnnotationError, parse_number
from phalanx.curation.prepare.class_files import read_class_file
from phalanx.curation.prepare.label_maps import BACKGROUND
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample, bounding_box
from phalanx.curation.prepare.shapes import corners_of, polygon, rotate
from phalanx.curation.prepare.tree import Tree, read_bytes
from phalanx.data import folders


def read_voc(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of XML files with root `annotation`, by VOC's tools, roLabelImg, or LabelMe's web tool.

    The classes are in the order of PaddleDetection's label_list.txt, or of CVAT's labelmap.txt.
    """
    for path in tree.files:
        if path.name.lower() in ('label_list.txt', 'labelmap.txt'):
            names = read_class_file(path).names
            found.class_names = tuple(dict.fromkeys(name for name in names if name != BACKGROUND))
    for path, root in parse_xml(tree, 'annotation', found):
        with found.left_out.catch():
            name = (root.findtext('filename') or '').strip()
            own = f'{path.stem}{Path(name).suffix}'  # files get renamed without their content
            image = tree.image(own if tree.has_image(own) else name or own, path, f'{path}')
            instances = [
                _voc_instance(element, tree, path, tree.size(image), f'{path}: object {n}')
                for n, element in enumerate(root.findall('object'), 1)
                if (element.findtext('deleted') or '0').strip() == '0'
            ]
            found.samples.append(Sample(image, tree.split_of(path), tuple(instances)))


def _voc_instance(element: ElementTree.Element, tree: Tree, file: Path, size: tuple[int, int], where: str) -> Instance:
    """Object with a box, a rotated one (roLabelImg), or a polygon or bitmap (LabelMe's web tool)."""
    label = (element.findtext('name') or '').strip()
    if not label:
        raise AnnotationError(f'{where}: has no name')

    def numbers(place: str, *names: str) -> list[float]:
        return [parse_number(element.findtext(f'{place}/{name}'), f'{where}: {place}/{name}') for name in names]

    ignored = (element.findtext('difficult') or '0').strip() not in ('0', '')
    if element.find('robndbox') is not None:
        x, y, width, height, radians = numbers('robndbox', 'cx', 'cy', 'w', 'h', 'angle')
        upright = corners_of(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        corners = rotate(upright, math.degrees(radians), (x, y))
        return Instance(label, bounding_box(corners), (), corners, ignored=ignored)
    if element.find('polygon') is not None:
        points = [
            [parse_number(point.findtext(name), f'{where}: polygon/pt') for name in 'xy']
            for point in element.findall('polygon/pt')
        ]
        outline = polygon(points, size, where)
        return Instance(label, bounding_box(points), () if element.findtext('type') == 'bounding_box' else (outline,))
    if element.find('segm') is not None:
        mask = tree.image(f'{file.parent.name}/{element.findtext("segm/mask")}', file, where)
        return bitmap_instance(label, decode_png(read_bytes(mask), size, where), 0, 0, size, where)
    if element.find('bndbox') is None:
        kinds = ', '.join(child.tag for child in element)
        raise AnnotationError(f'{where}: has no bndbox, robndbox, polygon or segm, only {kinds}')
    x0, y0, x1, y1 = numbers('bndbox', 'xmin', 'ymin', 'xmax', 'ymax')
    return Instance(label, (x0, y0, x1, y1), ignored=ignored)


def parse_xml(tree: Tree, tag: str, found: AnnotationSet) -> list[tuple[Path, ElementTree.Element]]:
    """Parse the XML files whose root has the tag; files with other roots are not of this format."""
    files = []
    for path in tree.having('.xml'):
        with found.left_out.catch():
            try:
                root = folders.parse_xml(read_bytes(path), path)
            except ValueError as error:
                raise AnnotationError(str(error)) from None
            if root.tag == tag:
                files.append((path, root))
    return files
