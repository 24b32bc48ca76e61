"""Exports of Label Studio, in its own format (JSON) or the short one (JSON-MIN): a list of tasks, sizes in hundredths."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from phalanx.curation.prepare.bitmaps import bitmap_instance, decode_brush
from phalanx.curation.prepare.coco_content import stated_split
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample, SplitName
from phalanx.curation.prepare.tree import IMAGES, Tree, read_records, read_text
from phalanx.data.checks import AnnotationError, check_floats, get_member, parse_json, shorten
from phalanx.data.shapes import bounding_box, corners_of, ellipse, polygon, rotate

KINDS = ('rectanglelabels', 'polygonlabels', 'ellipselabels', 'brushlabels', 'rectangle', 'polygon', 'ellipse', 'brush')
USED = {*KINDS, 'labels', 'textarea', None}  # None: JSON-MIN does not tell
GEOMETRY = {'x', 'points', 'vertices', 'rle', 'imageDataURL', 'keypoints'}  # keys of what marks a part of an image
BITMAP = re.compile(r'task-\d+-annotation-\d+')  # brushes exported as PNG


def find_label_studio(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of JSON lists of tasks. Of several annotations of a task, the ground truth counts, or else the first that
    was not cancelled.

    Tasks that nobody annotated, and those that were skipped, are not used; a submitted annotation without regions is.
    """
    open_tasks, several = 0, list[str]()
    for path, content in [*tree.jsons.items(), *_tables(tree)]:
        tasks = _tasks(content)
        for number, task in enumerate(tasks if _has_tasks(tasks) else ()):
            with found.left_out.catch():
                where = f'{path}: task {task.get("id", number) if isinstance(task, dict) else number}'
                names = _image_names(task) if isinstance(task, dict) else {}
                if not names:
                    raise AnnotationError(f'{where}: has no image')
                results = _results(task, where, several)
                if results is None:
                    open_tasks += 1
                    continue
                images = {key: _image(name, tree, path, where) for key, name in names.items()}
                for image, own in _by_image(results, images, where):
                    with found.dropping(image):
                        instances, text = _marks(own, tree.size(image), where)
                        found.unused.update(f'results {one.get("type")}' for one in own if one.get('type') not in USED)
                        found.samples.append(Sample(image, _split(task, tree, path), instances, text=text))
    if several:
        found.notes.append(f'tasks with several annotations, of which one is used: {len(several)}, such as {several[0]}')
    if bitmaps := [image for image in tree.images if BITMAP.match(image.name)]:
        said = 'does not name the image that it was painted on; export JSON from Label Studio'
        found.left_out.append(f'{bitmaps[0]} (and {len(bitmaps) - 1} more like it) {said}')
    if open_tasks:
        note = f'tasks without an annotation (not begun, or skipped), not used: {open_tasks}'
        (found.notes if found.samples else found.left_out).append(note)


def _tasks(content: Any) -> Any:
    """The tasks of a file: a list, or one task; a file per annotation (in a connected storage) has its task in it."""
    if isinstance(content, dict) and isinstance(content.get('result'), list) and isinstance(content.get('task'), dict):
        return [content['task'] | {'annotations': [{key: value for key, value in content.items() if key != 'task'}]}]
    is_task = isinstance(content, dict) and isinstance(content.get('data'), dict) and 'annotations' in content
    return [content] if is_task else content


def _split(task: dict[str, Any], tree: Tree, path: Path) -> SplitName:
    data = task['data'] if isinstance(task.get('data'), dict) else task
    return tree.split_of(path, stated_split(data))


def _by_image(results: list[dict[str, Any]], images: dict[str, Path], where: str) -> list[tuple[Path, list[dict[str, Any]]]]:
    """The results of each image of a task. Raises AnnotationError where several images do not tell theirs."""
    if len(images) == 1:
        return [(image, results) for image in images.values()]
    of_image: dict[str, list[dict[str, Any]]] = {key: [] for key in images}
    for result in results:
        key = str(result.get('item_index', result.get('to_name')))
        if key not in of_image and GEOMETRY & (result.get('value') or {}).keys():
            raise AnnotationError(f'{where}: has the images {", ".join(images)}, and a region on none of them ({key})')
        of_image.get(key, []).append(result)
    return [(images[key], own) for key, own in of_image.items()]


def _marks(results: list[dict[str, Any]], size: tuple[int, int], where: str) -> tuple[tuple[Instance, ...], str | None]:
    """The regions of an image, and the text of all of it. Raises AnnotationError where a region cannot be used."""
    marked = [result for result in results if result.get('type') in KINDS]
    readable = {str(result.get('id')) for result in marked}
    if turned := next((result['image_rotation'] for result in marked if result.get('image_rotation')), None):
        raise AnnotationError(
            f'{where}: was annotated on the image rotated by {turned} degrees; rotate it back in Label Studio'
        )
    for result in results:  # a region's label and text are results of their own with its id
        value, has_region = result.get('value'), result.get('id') is not None and str(result['id']) in readable
        if result.get('type') not in KINDS and not has_region and isinstance(value, dict) and GEOMETRY & value.keys():
            known = 'rectangles, polygons, ellipses and brushes can'
            raise AnnotationError(f'{where}: {result.get("type")} cannot be used, so the image is not; {known}')
    texts = {str(result.get('id')): _text(result) for result in results if result.get('type') == 'textarea'}
    labels = {str(r.get('id')): _label(r) for r in results if r.get('type') == 'labels'}
    instances = tuple(_instance(result, size, texts, labels, where) for result in marked)
    return instances, None if marked or not texts else next(iter(texts.values()))


def _tables(tree: Tree) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """The tasks of exports as CSV or TSV: the columns of JSON-MIN, with JSON in the cells of regions."""
    for path in tree.having('.csv', '.tsv'):
        with tree.unreadable.catch():
            text = read_text(path)
            head = text.partition('\n')[0]
            if 'annotation_id' in head and 'annotator' in head:
                records = read_records(text, '\t' if '\t' in head else ',', path)
                _, keys = next(records)
                rows = [(number, zip(keys, cells, strict=False)) for number, cells in records if cells]
                yield path, [{key: _cell(cell, f'{path}:{number}') for key, cell in row} for number, row in rows]


def _cell(text: str, where: str) -> Any:
    return parse_json(text, where) if text.startswith('[{') else text


def _has_tasks(content: object) -> bool:
    """True for a list in which some task has an image and is Label Studio's, whose annotations have a `result`."""
    tasks = [task for task in content if isinstance(task, dict) and _image_names(task)] if isinstance(content, list) else []
    lists = [one for task in tasks if isinstance(one := task.get('annotations', task.get('completions')), list)]
    if any(isinstance(one, dict) and 'result' not in one and 'coordinates' in one for ones in lists for one in ones):
        return False  # CreateML
    shorts = [result for task in tasks for result in _short_results(task) if result['type']]
    return bool(lists or shorts) or any('annotation_id' in task or 'annotator' in task for task in tasks)


def _image_names(task: dict[str, Any]) -> dict[str, str]:
    """Names of the images of a task: by the keys of its data, or by number for a list of pages."""
    data = task['data'] if isinstance(task.get('data'), dict) else task
    keys = dict.fromkeys(('image', 'img', 'ocr', 'captioning', *data))
    for key in keys:
        pages = data.get(key)
        if isinstance(pages, list) and pages and all(isinstance(page, str) and _is_image(page) for page in pages):
            return {str(number): page for number, page in enumerate(pages)}
    named = {key: data[key] for key in keys if isinstance(data.get(key), str)}
    images = {key: name for key, name in named.items() if _is_image(name)}
    return images or next(({key: name} for key, name in named.items() if '.' in name), {})


def _is_image(name: str) -> bool:
    address = urlsplit(name)
    return unquote(parse_qs(address.query).get('d', [address.path])[0]).lower().endswith(IMAGES)


def _image(name: str, tree: Tree, path: Path, where: str) -> Path:
    address = urlsplit(name)
    return tree.image(unquote(parse_qs(address.query).get('d', [address.path])[0]).lstrip('/'), path, where)


def _results(task: dict[str, Any], where: str, several: list[str]) -> list[dict[str, Any]] | None:
    """Submitted results of a task, which is added to `several` if it has more; None if there are none.

    Raises AnnotationError.
    """
    annotations = task.get('annotations', task.get('completions'))
    if annotations is not None:
        if not isinstance(annotations, list) or not all(isinstance(one, dict) for one in annotations):
            raise AnnotationError(f'{where}: annotations: expected a list of them, got {shorten(annotations)}')
        valid = [one for one in annotations if not one.get('was_cancelled')]
        valid.sort(key=lambda one: not one.get('ground_truth'))
        several += [where] if len(valid) > 1 else []
        results = get_member(valid[0], 'result', list, where) if valid else []
        if not all(isinstance(result, dict) for result in results):
            raise AnnotationError(f'{where}: result: expected a list of regions, got {shorten(results)}')
        return results if valid else None
    found = _short_results(task)
    return found if found or task.get('annotation_id') or task.get('annotator') else None


def _short_results(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Regions of the short format: values without their results."""
    found = []
    for value in task.values():
        for one in value if isinstance(value, list) else []:
            if isinstance(one, dict):
                kind = next((kind for kind in KINDS if kind in one or (kind[:9] == 'rectangle' and 'width' in one)), None)
                found.append({'type': kind, 'value': one, 'id': None})
    return found


def _label(result: dict[str, Any]) -> str:
    value = result.get('value')
    for key in (str(result.get('type')), 'labels', *KINDS):
        names = value.get(key) if isinstance(value, dict) else None
        if isinstance(names, list) and names and isinstance(names[0], str | int):
            return str(names[0])
    return ''


def _text(result: dict[str, Any]) -> str:
    value = result.get('value')
    texts = value.get('text') if isinstance(value, dict) else None
    return str(texts[0] if isinstance(texts, list) and texts else texts or '')


def _instance(
    result: dict[str, Any], size: tuple[int, int], texts: dict[str, str], labels: dict[str, str], where: str
) -> Instance:
    value: Any = result.get('value')
    identity = str(result.get('id'))
    text = texts.get(identity)
    label = _label(result) or labels.get(identity, '') or ('text' if text is not None else '')
    where = f'{where} ({label!r})'
    W, H = size
    if not isinstance(value, dict):
        raise AnnotationError(f'{where}: has no value')
    if not label:
        cure = '' if result.get('id') else '; export JSON, since JSON-MIN does not say which label and text belong to it'
        raise AnnotationError(f'{where}: has no label: {shorten(value)}{cure}')
    if any(isinstance(names := value.get(key), list) and len(names) > 1 for key in ('labels', *KINDS)):
        raise AnnotationError(f'{where}: has several labels: {shorten(value)}; an object has one class')
    if 'rle' in value:
        return bitmap_instance(label, decode_brush(value['rle'], size, where), 0, 0, size, where, text)
    if isinstance(value.get('points'), list):
        points = [check_floats(point, 2, f'{where}: points') for point in value['points']]
        points = [[x * W / 100, y * H / 100] for x, y in points]
        return Instance(label, bounding_box(points), (polygon(points, size, where),), text=text)
    degrees = check_floats([value.get('rotation') or 0], 1, f'{where}: rotation')[0]
    if 'radiusX' in value:
        x, y, rx, ry = check_floats([value.get(key) for key in ('x', 'y', 'radiusX', 'radiusY')], 4, where)
        points = ellipse(x * W / 100, y * H / 100, rx * W / 100, ry * H / 100, degrees)
        return Instance(label, bounding_box(points), (polygon(points, size, where),), text=text)
    x, y, width, height = check_floats([value.get(key) for key in ('x', 'y', 'width', 'height')], 4, where)
    x0, y0 = x * W / 100, y * H / 100
    upright = corners_of(x0, y0, x0 + width * W / 100, y0 + height * H / 100)
    corners = rotate(upright, degrees, (x0, y0))  # about the upper left corner
    return Instance(label, bounding_box(corners), (), corners, text)
