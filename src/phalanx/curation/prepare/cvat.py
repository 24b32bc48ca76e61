"""Annotations of CVAT: one XML file for all images of a task, or the tracks of a video whose frames are images."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from xml.etree.ElementTree import Element

from phalanx.curation.prepare.bitmaps import bitmap_instance, decode_rows
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.tree import Tree
from phalanx.curation.prepare.xml_files import parse_xml
from phalanx.data.checks import AnnotationError, check_size, parse_number
from phalanx.data.shapes import bounding_box, corners_of, ellipse, polygon, rotate

TEXTS = ('text', 'transcription', 'transcript', 'value')  # attributes that hold what is written
VIDEOS = ('.mp4', '.avi', '.mov', '.mkv', '.webm')
SIDES = ('width', 'height')  # of an image
SHAPES = ('box', 'polygon', 'ellipse', 'mask')  # those with an area


def read_cvat(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of XML files with root `annotations`, which have an element per image or per track of a video.

    An image with a shape that cannot be used is left out: trained on without it, its object would become background.
    """
    for path, root in parse_xml(tree, 'annotations', found):
        names = [label.findtext('name') or '' for label in root.iterfind('.//labels/label')]
        found.class_names = tuple(dict.fromkeys([*found.class_names, *filter(None, names)]))
        for element in root.findall('image'):
            with found.left_out.catch():
                where, subset = f'{path}: image {element.get("id")}', element.get('subset') or ''
                name = element.get('name') or ''
                in_subset = f'{subset}/{name}'  # in projects, images of different subsets may have one name
                image = tree.image(in_subset if subset and tree.has_image(name) else name, path, where)
                with found.dropping(image):
                    width, height = (int(parse_number(side, where)) if side else None for side in map(element.get, SIDES))
                    check_size((width, height), image, where)
                    _count_unused(element, found)
                    instances = _instances([shape for shape in element if shape.tag != 'tag'], tree.size(image), where)
                    found.samples.append(Sample(image, tree.split_of(path, subset), instances))
        _read_tracks(root, path, tree, found)


def _count_unused(shapes: Iterable[Element], found: AnnotationSet) -> None:
    """Count the tags of images and the attributes of objects."""
    for shape in shapes:
        names = [one.get('name') or '' for one in shape.findall('attribute')]
        found.unused.update(f'attributes {name!r}' for name in names if name.lower() not in TEXTS)
        found.unused['tags'] += shape.tag == 'tag'


def _read_tracks(root: Element, path: Path, tree: Tree, found: AnnotationSet) -> None:
    """Add the frames of a video on which a track is visible; CVAT names their images `frame_000017`."""
    frames = defaultdict[int, list[Element]](list)
    gaps = list[tuple[int, int, str]]()  # of tracks that go on behind them: CVAT itself writes a shape for every frame
    for track in root.findall('track'):
        where, before, is_visible = f'{path}: track {track.get("id")}', 0, False
        for shape in track:
            frame = int(parse_number(shape.get('frame'), f'{where}: frame'))
            gaps += [(before, frame, where)] if is_visible else []
            before, is_visible = frame, shape.get('outside') != '1'
            if is_visible:
                shape.set('label', track.get('label') or '')
                frames[frame].append(shape)
                _count_unused([shape], found)
    for number, shapes in sorted(frames.items()):
        where = f'{path}: frame {number}'
        with found.left_out.catch():
            name = f'frame_{number:06}'
            if not tree.has_stem(name):
                video = next((file for file in tree.files if file.suffix.lower() in VIDEOS), None)
                advice = 'export "CVAT for video" with "Save images", or as "CVAT for images"'
                if video:
                    advice = f'write the frames: ffmpeg -i {quote(str(video))} -start_number 0 {video.parent}/frame_%06d.png'
                raise AnnotationError(f'{where}: of a video, and there is no image {name}: {advice}')
            image = tree.image(name, path, where)
            with found.dropping(image):
                if hidden := next((track for start, end, track in gaps if start < number < end), None):
                    raise AnnotationError(f'{where}: {hidden} has no shape on it, but before and behind; export all frames')
                found.samples.append(Sample(image, tree.split_of(path), _instances(shapes, tree.size(image), where)))


def _instances(shapes: list[Element], size: tuple[int, int], where: str) -> tuple[Instance, ...]:
    """The objects of an image. Raises AnnotationError where one of them cannot be used."""
    others = Counter(shape.tag for shape in shapes if shape.tag not in SHAPES)
    if others:
        kinds = ', '.join(f'{count} {tag}' for tag, count in others.items())
        raise AnnotationError(f'{where}: {kinds} without an area, so the image is not used; {", ".join(SHAPES)} can be used')
    return tuple(_instance(shape, size, f'{where}: {shape.tag}') for shape in shapes)


def _instance(shape: Element, size: tuple[int, int], where: str) -> Instance:
    label = shape.get('label') or ''
    if not label:
        raise AnnotationError(f'{where}: has no label')
    text = next((each.text for each in shape.findall('attribute') if (each.get('name') or '').lower() in TEXTS), None)

    def numbers(*names: str) -> list[float]:
        return [parse_number(shape.get(name), f'{where}: {name}') for name in names]

    # each shape becomes a box and, where it has one, an outline; rotation is applied here
    degrees = parse_number(shape.get('rotation') or '0', f'{where}: rotation')  # clockwise, about the centre
    if shape.tag == 'mask':
        left, top, width, height = (int(value) for value in numbers('left', 'top', 'width', 'height'))
        counts = [parse_number(value, f'{where}: rle') for value in (shape.get('rle') or '').split(',')]
        return bitmap_instance(label, decode_rows(counts, width, height, where), left, top, size, where, text)
    if shape.tag == 'box':
        x0, y0, x1, y1 = numbers('xtl', 'ytl', 'xbr', 'ybr')
        if not degrees:
            return Instance(label, (x0, y0, x1, y1), text=text)
        corners = rotate(corners_of(x0, y0, x1, y1), degrees, ((x0 + x1) / 2, (y0 + y1) / 2))
        return Instance(label, bounding_box(corners), (), corners, text)
    # everything else has points: polygons as they are, ellipses approximated
    if shape.tag == 'ellipse':
        x, y, rx, ry = numbers('cx', 'cy', 'rx', 'ry')
        points = ellipse(x, y, rx, ry, degrees)
    else:
        points = [[parse_number(value, where) for value in pair.split(',')] for pair in (shape.get('points') or '').split(';')]
    return Instance(label, bounding_box(points), (polygon(points, size, where),), text=text)
