"""Pascal VOC's XML files, one per image: read for the data sets of recipes and for `phalanx new`, and written.

Their relatives are read too: rotated boxes of roLabelImg and CVAT, polygons and bitmaps of LabelMe's web tool.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from phalanx.data.checks import AnnotationError, parse_flag, parse_numbers
from phalanx.data.folders import parse_xml
from phalanx.data.shapes import DIGITS, Box, bounding_box, corners_of, rotate

Points = list[list[float]]
CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')
TURNED = ('cx', 'cy', 'w', 'h', 'angle')


class VocObject(NamedTuple):
    where: str  # the beginning of messages about it
    label: str
    box: Box | None  # x0, y0, x1, y1; None for a bitmap
    corners: Points = []  # noqa: RUF012 - of a rotated box
    outline: Points = []  # noqa: RUF012 - of a polygon
    mask: str = ''  # name of the file of a bitmap
    difficult: bool = False


class VocFile(NamedTuple):
    name: str  # of the image, which may be that before it was renamed
    size: tuple[int, int]  # (width, height); (0, 0) if the file does not say
    objects: list[VocObject]
    attributes: list[dict[str, str]] = []  # noqa: RUF012 - of objects, by CVAT or within a bndbox: values by name


def read_voc_file(path: Path, data: bytes) -> VocFile | None:
    """Parse the XML file of an image; None for XML of another format. Raises AnnotationError."""
    root = parse_xml(data, path)
    if root.tag != 'annotation':
        return None
    size, shown = root.find('size'), (0, 0)
    if size is not None:
        values = [(size.findtext(key) or '').strip() or 0 for key in ('height', 'width')]
        height, width = parse_numbers(values, 2, f'{path}: size', 'height and width')
        shown = (int(width), int(height)) if width and height else shown
    objects = []
    for number, element in enumerate(root.findall('object'), 1):
        where = f'{path}: object {number}'
        if not parse_flag(element.findtext('deleted'), f'{where}: deleted'):  # LabelMe's web tool keeps these
            objects.append(_parse_object(element, where))
    name = (root.findtext('filename') or '').strip().replace('\\', '/')
    attributes = [_attributes(element) for element in root.iterfind('object/attributes')]
    attributes += [  # of WTW: the places of cells in a table
        more
        for box in root.iterfind('object/bndbox')
        if (more := {one.tag: one.text or '' for one in box if one.tag not in CORNERS})
    ]
    return VocFile(name, shown, objects, attributes)


def voc_tree(name: str, size: tuple[int, int], objects: Iterable[tuple[str, Sequence[float], bool]]) -> ElementTree.Element:
    """Annotation of the image `name` of `size` (width, height) and its objects: class name, box in pixels, difficult."""
    root = ElementTree.Element('annotation')
    ElementTree.SubElement(root, 'filename').text = name
    shape = ElementTree.SubElement(root, 'size')
    for side, length in zip(('width', 'height', 'depth'), (*size, 3), strict=True):
        ElementTree.SubElement(shape, side).text = str(length)
    for label, box, difficult in objects:
        element = ElementTree.SubElement(root, 'object')
        ElementTree.SubElement(element, 'name').text = label
        ElementTree.SubElement(element, 'difficult').text = str(int(difficult))
        corners = ElementTree.SubElement(element, 'bndbox')
        for corner, value in zip(CORNERS, box, strict=True):
            ElementTree.SubElement(corners, corner).text = str(round(value, DIGITS))
    return root


def correct_sizes(files: Iterable[VocFile]) -> tuple[list[VocFile], int]:
    """Correct the sizes of a data set whose tool exchanged width and height; return their number, too.

    Some tools take the shape of an array (height, width) for (width, height). Boxes show it that reach out of an image of the
    given size, but not of the exchanged one. In a set with such files, sizes that no box proves or disproves become unknown.
    """
    files = list(files)
    shown = [not _fits(file, *file.size) and _fits(file, *file.size[::-1]) for file in files]
    if not any(shown):
        return files, 0
    corrected = []
    for file, is_exchanged in zip(files, shown, strict=True):
        width, height = file.size
        other = (height, width) if is_exchanged else file.size if width == height or not _fits(file, height, width) else (0, 0)
        corrected.append(file._replace(size=other))
    return corrected, sum(shown)


def _fits(file: VocFile, width: int, height: int) -> bool:
    """True if all boxes lie in an image of this size, with a pixel of tolerance; VOC counts from 1."""
    return all(one.box[2] <= width + 1 and one.box[3] <= height + 1 for one in file.objects if one.box) or width == 0


def _parse_object(element: ElementTree.Element, where: str) -> VocObject:
    """Object with a box, a rotated box, a polygon or a bitmap. Raises AnnotationError."""
    label = (element.findtext('name') or '').strip()
    if not label:
        raise AnnotationError(f'{where}: has no name')
    if double := next((name for name in ('name', 'bndbox', 'robndbox', 'polygon') if len(element.findall(name)) > 1), None):
        raise AnnotationError(f'{where}: has several {double}; an object has one')

    def numbers(place: str, names: tuple[str, ...]) -> list[float]:
        words = f'{", ".join(names[:-1])} and {names[-1]}'
        return parse_numbers([element.findtext(f'{place}/{name}') for name in names], len(names), f'{where}: {place}', words)

    difficult = parse_flag(element.findtext('difficult'), f'{where}: difficult')
    if element.find('robndbox') is not None:
        x, y, width, height, radians = numbers('robndbox', TURNED)
        upright = corners_of(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        return _rotated(where, label, upright, math.degrees(radians), difficult)
    if element.find('polygon') is not None:
        points = [
            parse_numbers([point.findtext(name) for name in 'xy'], 2, f'{where}: polygon/pt', 'x and y')
            for point in element.findall('polygon/pt')
        ]
        if not points:  # Roboflow: x1, y1, x2, y2, ...
            count = len(element.findall('polygon/*')) // 2
            points = [numbers('polygon', (f'x{n}', f'y{n}')) for n in range(1, count + 1)]
        if not points:
            raise AnnotationError(f'{where}: polygon: has no points')
        is_box = element.findtext('type') == 'bounding_box'
        return VocObject(where, label, bounding_box(points), outline=[] if is_box else points, difficult=difficult)
    if element.find('segm') is not None:
        return VocObject(where, label, None, mask=element.findtext('segm/mask') or '', difficult=difficult)
    if element.find('bndbox') is None:
        kinds = ', '.join(child.tag for child in element)
        raise AnnotationError(f'{where}: has no bndbox, robndbox, polygon or segm, only {kinds}')
    x0, y0, x1, y1 = numbers('bndbox', CORNERS)
    degrees = _rotation(element, where)
    if degrees % 360:
        return _rotated(where, label, corners_of(x0, y0, x1, y1), degrees, difficult)
    return VocObject(where, label, (x0, y0, x1, y1), difficult=difficult)


def _attributes(element: ElementTree.Element) -> dict[str, str]:
    return {one.findtext('name') or '': one.findtext('value') or '' for one in element.iterfind('attribute')}


def _rotation(element: ElementTree.Element, where: str) -> float:
    """Degrees by which CVAT turned a box about its centre, clockwise. Raises AnnotationError."""
    for attribute in element.iterfind('attributes/attribute'):
        if attribute.findtext('name') == 'rotation':
            return parse_numbers([attribute.findtext('value')], 1, f'{where}: rotation', 'degrees')[0]
    return 0.0


def _rotated(where: str, label: str, upright: Points, degrees: float, difficult: bool) -> VocObject:
    (x0, y0), _, (x1, y1), _ = upright
    corners = rotate(upright, degrees, ((x0 + x1) / 2, (y0 + y1) / 2))
    return VocObject(where, label, bounding_box(corners), corners, difficult=difficult)
