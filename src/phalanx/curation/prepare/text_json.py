"""Texts in JSON: of docTR and MMOCR, and objects of an image and its text, as in the metadata of Hugging Face."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.tree import Tree, read_lines
from phalanx.data.checks import AnnotationError, check_floats, get_member, parse_json, shorten
from phalanx.data.shapes import bounding_box, corners_of
from phalanx.data.texts import IGNORED_TEXTS, LINE, check_outline

WORD = 'words'  # label that docTR gives to boxes without a class
DOCTR = {'polygons', 'typed_words', 'logic'}  # keys of its files for each image
IMAGE_KEYS = ('file_name', 'filename', 'image', 'image_path', 'img_path', 'path', 'img', 'file')
TEXT_KEYS = ('text', 'transcription', 'ground_truth', 'words')


def find_text_json(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of objects by image (docTR), lists in `data_list` (MMOCR), and objects of an image and its text."""
    for path, content in tree.jsons.items():
        with found.left_out.catch():
            for where, name, entry in _entries(path, content, tree):
                _add(where, name, entry, path, tree, found)
    for path in [path for path in tree.having('.jsonl', '.ndjson', '.json') if path not in tree.jsons]:
        with found.left_out.catch():
            for number, line in enumerate(read_lines(path), 1):
                if number == 1 and not _begins_texts(line):  # a damaged line is reported by the reader of tables
                    break
                if line.strip():
                    with found.left_out.catch():
                        entry = parse_json(line, f'{path}:{number}')
                        _add(f'{path}:{number}', _name(entry), entry, path, tree, found)


def _begins_texts(line: bytes) -> bool:
    """True for a line with an image and its text."""
    try:
        return bool(_name(parse_json(line, '')))
    except AnnotationError:
        return False


def _add(where: str, name: str, entry: Any, path: Path, tree: Tree, found: AnnotationSet) -> None:
    with found.left_out.catch():
        image = tree.image(name, path, where)
        with found.dropping(image):
            found.samples.append(_parse(entry, image, path, tree, where))


def _entries(path: Path, content: Any, tree: Tree) -> Iterator[tuple[str, str, Any]]:
    """Beginning of a message, image and annotation, for each image of a file; nothing for files of another kind."""
    if isinstance(content, list) and content and _name(content[0]):
        for number, entry in enumerate(content):
            yield f'{path}: [{number}]', _name(entry), entry
    elif isinstance(content, dict) and {'metainfo', 'data_list'} <= content.keys():
        listed = get_member(content, 'data_list', list, f'{path}')
        if not any(_is_mmocr(entry) for entry in listed):
            raise AnnotationError(
                f'{path}: is a list of MMEngine, which is read for texts only; take the COCO or VOC files that it was made from'
            )
        for number, entry in enumerate(listed):
            where = f'{path}: data_list[{number}]'
            yield where, get_member(entry, 'img_path', str, where), entry
    elif isinstance(content, dict) and content:
        name, first = next(iter(content.items()))
        is_doctr = any(isinstance(entry, dict) and DOCTR & entry.keys() for entry in content.values())
        if tree.has_image(name) and (isinstance(first, str) or is_doctr):
            if {str, dict} <= {*map(type, content.values())}:
                raise AnnotationError(f'{path}: has the text of some images, and objects of others; which of them are meant?')
            yield from ((f'{path}: {name}', name, entry) for name, entry in content.items())


def _is_mmocr(entry: Any) -> bool:
    instances = entry.get('instances') if isinstance(entry, dict) else None
    return isinstance(instances, list) and any(isinstance(one, dict) and {'text', 'polygon'} & one.keys() for one in instances)


def _name(entry: Any) -> str:
    """The image of an object with an image and a text; empty if one of them is not there."""
    if not isinstance(entry, dict) or not any(isinstance(entry.get(key), str) for key in TEXT_KEYS):
        return ''
    return next((entry[key] for key in IMAGE_KEYS if isinstance(entry.get(key), str)), '')


def _parse(entry: Any, image: Path, path: Path, tree: Tree, where: str) -> Sample:
    """Sample of an image by its entry in a file. Raises AnnotationError."""
    if isinstance(entry, str):
        return Sample(image, tree.split_of(path), text=entry)
    if not isinstance(entry, dict):
        raise AnnotationError(f'{where}: expected a text or an object, got {shorten(entry)}')
    split = tree.split_of(path, str(entry.get('split')))
    if 'logic' in entry:
        raise AnnotationError(f'{where}: has cells of docTR, which are not read; write a file of HTML for each table')
    if 'instances' in entry:
        instances = get_member(entry, 'instances', list, where)
        alone = instances[0] if len(instances) == 1 and isinstance(instances[0], dict) else {}
        if 'text' in alone and not {'polygon', 'bbox'} & alone.keys():
            return Sample(image, split, text=get_member(alone, 'text', str, where))
        return Sample(image, split, tuple(_of_mmocr(one, f'{where}: {n}') for n, one in enumerate(instances, 1)))
    if 'typed_words' in entry:
        words = get_member(entry, 'typed_words', list, where)
        return Sample(image, split, tuple(_typed_word(one, f'{where}: word {n}') for n, one in enumerate(words, 1)))
    if 'polygons' in entry:
        return Sample(image, split, tuple(_of_doctr(entry, where)))
    text = next((entry[key] for key in TEXT_KEYS if isinstance(entry.get(key), str)), None)
    if text is None or text.lstrip().startswith('{"gt_parse'):
        has = f'no text ({", ".join(TEXT_KEYS)})' if text is None else 'the text of a page (of Donut) without its places'
        raise AnnotationError(f'{where}: has {has}; write the text of an image of one line, or the lines of a page as {LINE}')
    return Sample(image, split, text=text)


def _line(points: list[list[float]], text: str, *, ignored: bool = False) -> Instance:
    return Instance('text', bounding_box(points), (), points, text, ignored=ignored or text in IGNORED_TEXTS)


def _of_mmocr(one: Any, where: str) -> Instance:
    if isinstance(one, dict) and one.get('polygon'):
        listed = get_member(one, 'polygon', list, where)
        flat = check_floats(listed, len(listed), f'{where}: polygon')
        points = check_outline([flat[n : n + 2] for n in range(0, len(flat), 2)], f'{where}: polygon')
    else:
        points = corners_of(*check_floats(get_member(one, 'bbox', list, where), 4, f'{where}: bbox'))
    text = get_member(one, 'text', str, where) if 'text' in one else ''
    return _line(points, text, ignored=bool(one.get('ignore')))


def _typed_word(one: Any, where: str) -> Instance:
    geometry = get_member(one, 'geometry', list, where)
    return _line(corners_of(*check_floats(geometry[:4], 4, f'{where}: geometry')), get_member(one, 'value', str, where))


def _of_doctr(entry: dict[str, Any], where: str) -> Iterator[Instance]:
    """Boxes of words, or of the parts of a page where they have classes."""
    polygons = get_member(entry, 'polygons', (list, dict), where)
    if isinstance(polygons, dict):
        marked = [(label, points) for label in polygons for points in get_member(polygons, label, list, where)]
    else:
        classes = entry.get('classes', [WORD] * len(polygons))
        if not isinstance(classes, list) or len(classes) != len(polygons):
            raise AnnotationError(f'{where}: has {len(polygons)} polygons, but not as many classes')
        marked = list(zip(map(str, classes), polygons, strict=True))
    for number, (label, polygon) in enumerate(marked, 1):
        points = check_outline(polygon, f'{where}: polygon {number}')
        yield Instance(label, bounding_box(points), (), points, '' if label == WORD else None)
