"""Exports of Label Studio, in its own format (JSON) or the short one (JSON-MIN): a list of tasks, sizes in hundredths."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from phalanx.curation.prepare.checks import AnnotationError, floats, shortened
from phalanx.curation.prepare.samples import Found, Sample, Thing, box_around
from phalanx.curation.prepare.shapes import polygon
from phalanx.curation.prepare.tree import Tree

KINDS = ('rectanglelabels', 'polygonlabels', 'rectangle', 'polygon')
UPLOADED = re.compile(r'^[0-9a-f]{8}-')  # what Label Studio puts before the name of an image that was uploaded


def find_label_studio(tree: Tree, found: Found) -> None:
    """All JSON files that are lists of tasks. Of several annotations of a task, the first that was not cancelled counts."""
    for path, content in tree.jsons.items():
        if not isinstance(content, list) or not all(isinstance(task, dict) for task in content):
            continue
        for number, task in enumerate(content):
            where = f'{path}: task {task.get("id", number)}'
            name = _image_name(task)
            if name is None:
                continue
            with found.left_out.noted():
                image = _image(name, tree, path, where)
                size = tree.size(image)
                results = list(_results(task))
                others = {str(result.get('type')) for result in results} - {*KINDS, 'textarea', 'labels', 'choices', 'None'}
                if others:
                    found.left_out.append(f'{where}: {", ".join(sorted(others))} are neither rectangles nor polygons')
                texts = {str(result.get('id')): _text(result) for result in results if result.get('type') == 'textarea'}
                labels = {str(r.get('id')): _label(r) for r in results if r.get('type') == 'labels'}
                marked = [result for result in results if result.get('type') in KINDS]
                things = [_thing(result, size, texts, labels, where) for result in marked]
                text = None if marked or not texts else next(iter(texts.values()))
                found.samples.append(Sample(image, tree.split_of(path), tuple(things), text=text))


def _image_name(task: dict[str, Any]) -> str | None:
    data = task['data'] if isinstance(task.get('data'), dict) else task
    keys = ('image', 'img', 'ocr', 'captioning', *data)
    return next((data[key] for key in keys if isinstance(data.get(key), str) and '.' in data[key]), None)


def _image(name: str, tree: Tree, path: Path, where: str) -> Path:
    address = urlsplit(name)
    local = parse_qs(address.query).get('d', [address.path])[0]
    plain = unquote(local)
    folder, _, last = plain.rpartition('/')
    return tree.image(plain if tree.has_image(plain) else f'{folder}/{UPLOADED.sub("", last)}'.lstrip('/'), path, where)


def _results(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    annotations = task.get('annotations', task.get('completions'))
    if isinstance(annotations, list):
        valid = [one for one in annotations if isinstance(one, dict) and not one.get('was_cancelled')]
        results = valid[0].get('result') if valid else None
        yield from (result for result in results if isinstance(result, dict)) if isinstance(results, list) else ()
        return
    for value in task.values():  # the short format: values without their results
        for one in value if isinstance(value, list) else []:
            if isinstance(one, dict):
                kind = next((kind for kind in KINDS if kind in one or (kind[:9] == 'rectangle' and 'width' in one)), None)
                yield {'type': kind, 'value': one, 'id': None}


def _label(result: dict[str, Any]) -> str:
    value = result.get('value')
    for key in (str(result.get('type')), 'labels', *KINDS):
        names = value.get(key) if isinstance(value, dict) else None
        if isinstance(names, list) and names:
            return str(names[0])
    return ''


def _text(result: dict[str, Any]) -> str:
    value = result.get('value')
    texts = value.get('text') if isinstance(value, dict) else None
    return str(texts[0] if isinstance(texts, list) and texts else texts or '')


def _thing(result: dict[str, Any], size: tuple[int, int], texts: dict[str, str], labels: dict[str, str], where: str) -> Thing:
    value: Any = result.get('value')
    identity = str(result.get('id'))
    text = texts.get(identity)
    label = _label(result) or labels.get(identity, '') or ('text' if text is not None else '')
    where = f'{where} ({label!r})'
    W, H = size
    if not isinstance(value, dict):
        raise AnnotationError(f'{where}: has no value')
    if isinstance(value.get('points'), list):
        points = [floats(point, 2, f'{where}: points') for point in value['points']]
        points = [[x * W / 100, y * H / 100] for x, y in points]
        return Thing(label, box_around(points), (polygon(points, size, where),), points if len(points) == 4 else (), text)
    x, y, width, height = floats([value.get(key) for key in ('x', 'y', 'width', 'height')], 4, where)
    angle = math.radians(floats([value.get('rotation') or 0], 1, f'{where}: rotation')[0])
    along, down = (math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))  # turned about the upper left corner
    w, h = width * W / 100, height * H / 100
    corners = [
        [x * W / 100 + a * w * along[0] + b * h * down[0], y * H / 100 + a * w * along[1] + b * h * down[1]]
        for a, b in ((0, 0), (1, 0), (1, 1), (0, 1))
    ]
    if not label:
        raise AnnotationError(f'{where}: has no label: {shortened(value)}')
    return Thing(label, box_around(corners), (), corners, text)
