"""Damaged annotation files: each image has all its objects as they were, or is not used and a message says why."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import islice
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import drawn
from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.samples import LeftOut
from phalanx.curation.prepare.tree import Tree

Objects = dict[str, list[tuple[str, tuple[int, ...], int]]]  # label, box and outlines by the name of the image
COUNTED = settings(max_examples=20, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


def datumaro(folder: Path) -> None:
    items = []
    for number, image in enumerate(drawn.images(folder / 'images/train')):
        x0, y0, x1, y1 = drawn.box_of(number)
        size = [*drawn.size_of(number)[::-1]]
        box = {'type': 'bbox', 'label_id': drawn.CLASSES.index(drawn.label_of(number)), 'bbox': [x0, y0, x1 - x0, y1 - y0]}
        items.append({'id': image.stem, 'image': {'path': image.name, 'size': size}, 'annotations': [box]})
    labels = {'label': {'labels': [{'name': name} for name in drawn.CLASSES]}}
    drawn.write(folder / 'annotations/train.json', {'categories': labels, 'items': items})


def createml(folder: Path) -> None:
    entries = []
    for number, image in enumerate(drawn.images(folder)):
        x0, y0, x1, y1 = drawn.box_of(number)
        middle = {'x': (x0 + x1) / 2, 'y': (y0 + y1) / 2, 'width': x1 - x0, 'height': y1 - y0}
        entries.append({'image': image.name, 'annotations': [{'label': drawn.label_of(number), 'coordinates': middle}]})
    drawn.write(folder / 'createml.json', entries)


def via(folder: Path) -> None:
    entries = {}
    for number, image in enumerate(drawn.images(folder)):
        xs, ys = zip(*drawn.corners(drawn.box_of(number)), strict=True)
        shape = {'name': 'polygon', 'all_points_x': [*xs], 'all_points_y': [*ys]}
        region = {'shape_attributes': shape, 'region_attributes': {'class': drawn.label_of(number)}}
        entries[f'{image.name}1'] = {'filename': image.name, 'regions': [region]}
    drawn.write(folder / 'via.json', entries)


def doctr(folder: Path) -> None:
    pages = {}
    for number, image in enumerate(drawn.images(folder / 'images')):
        outlines = {'polygons': [drawn.corners(drawn.box_of(number))]}
        words = {'typed_words': [{'value': 'x', 'geometry': [*drawn.box_of(number), 0.0]}]}
        pages[image.name] = words if number % 3 else outlines
    drawn.write(folder / 'labels.json', pages)


def mmocr(folder: Path) -> None:
    listed = []
    for number, image in enumerate(drawn.images(folder / 'images')):
        flat = [value for corner in drawn.corners(drawn.box_of(number)) for value in corner]
        line = {'polygon': flat, 'text': 'x', 'ignore': False} if number % 2 else {'bbox': drawn.box_of(number), 'text': 'x'}
        listed.append({'img_path': f'images/{image.name}', 'instances': [line, {'bbox': [1, 1, 9, 5], 'text': 'y'}]})
    drawn.write(folder / 'textdet.json', {'metainfo': {}, 'data_list': listed})


def dota(folder: Path) -> None:
    for number, image in enumerate(drawn.images(folder / 'images')):
        flat = ' '.join(str(value) for corner in drawn.corners(drawn.box_of(number)) for value in corner)
        drawn.write(folder / f'labelTxt/{image.stem}.txt', f'{flat} {drawn.label_of(number)} 0\n' * 2)


def kitti(folder: Path) -> None:
    for number, image in enumerate(drawn.images(folder / 'image_2')):
        box = ' '.join(map(str, drawn.box_of(number)))
        drawn.write(folder / f'label_2/{image.stem}.txt', f'{drawn.label_of(number)} 0 0 0 {box} 1 1 1 1 1 1 1\n' * 2)


JSON: dict[str, Callable[[Path], None]] = {
    'coco': drawn.coco,
    'label_studio': drawn.label_studio,
    'labelme': drawn.labelme,
    'supervisely': drawn.supervisely,
    'datumaro': datumaro,
    'createml': createml,
    'via': via,
    'doctr': doctr,
    'mmocr': mmocr,
}
LINES: dict[str, Callable[[Path], None]] = {
    'yolo': drawn.yolo,
    'csv': drawn.csv_boxes,
    'dota': dota,
    'kitti': kitti,
    'voc': drawn.voc,
    'cvat': drawn.cvat,
}


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp('damaged')
    for name, drawing in (JSON | LINES).items():
        drawing(place / name)
    return {name: place / name for name in JSON | LINES}


def read(folder: Path, name: str) -> tuple[Objects, list[str]]:
    """Objects of each image that is used, and the messages."""
    name = 'text_json' if name in ('doctr', 'mmocr') else name
    tree, refused = Tree(folder), dict[str, LeftOut]()
    found = find_annotations(tree, [name], refused).get(name)
    messages = [*tree.unreadable, *refused.get(name, []), *(found.left_out + found.notes if found else [])]
    samples = found.samples if found else []
    objects = {
        str(sample.image.relative_to(folder)): sorted(
            (instance.label, tuple(round(value) for value in instance.box), len(instance.outline))
            for instance in sample.instances
        )
        for sample in samples
    }
    return objects, messages


def check(folder: Path, name: str, file: Path, damaged: str) -> None:
    intact, (before, _) = file.read_text(), read(folder, name)
    assert before
    try:
        file.write_text(damaged)
        after, messages = read(folder, name)
    finally:
        file.write_text(intact)
    assert {image: instances for image, instances in after.items() if instances != before[image]} == {}
    assert after.keys() == before.keys() or messages


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in a JSON document."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [one for key, value in pairs for one in ((*path, key), *places(value, (*path, key)))]


MISSING = object()
WRONG: dict[type, list[Any]] = {
    int: ['three', None, [], {}],
    float: ['three', None, [], {}],
    str: [None, {}, []],  # a number may be the name of a class
    list: ['three', None, 3],
    dict: ['three', None, 3],
    bool: ['three'],
    type(None): ['three'],
}


def damages(content: Any) -> Iterator[Any]:
    """Copies of a JSON document, each with one value of another kind, or without one key below the first level."""
    for path in places(content):
        value = reduce(getitem, path, content)
        for wrong in (*WRONG[type(value)], MISSING):
            damaged = copy.deepcopy(content)
            owner = reduce(getitem, path[:-1], damaged)
            if wrong is not MISSING:
                owner[path[-1]] = wrong
            elif isinstance(owner, dict) and len(path) > 1:  # a document without one of its images is whole
                del owner[path[-1]]
            yield damaged


@pytest.mark.parametrize('every', [61, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize('name', JSON)
def test_a_json_file_with_a_value_of_another_kind_is_read_alike_or_not(folders: dict[str, Path], name: str, every: int) -> None:
    for file in sorted(folders[name].rglob('*.json')):
        for damaged in islice(damages(json.loads(file.read_text())), 0, None, every):
            check(folders[name], name, file, json.dumps(damaged))


@pytest.mark.parametrize(
    ('name', 'path', 'key', 'wrong'),
    [
        ('label_studio', (0, 'annotations', 0, 'result', 0, 'value'), 'rectanglelabels', [None]),  # not a class `None`
        ('supervisely', ('objects', 0, 'points'), 'interior', 3),
    ],
)
def test_values_that_were_once_misread_are_refused(
    folders: dict[str, Path], name: str, path: tuple[Any, ...], key: str, wrong: object
) -> None:
    file = next(file for file in sorted(folders[name].rglob('*.json')) if f'"{key}"' in file.read_text())
    damaged = json.loads(file.read_text())
    reduce(getitem, path, damaged)[key] = wrong
    check(folders[name], name, file, json.dumps(damaged))


@pytest.mark.parametrize('name', LINES)
@given(data=st.data())
@COUNTED
def test_a_text_file_with_a_damaged_number_is_read_alike_or_not(folders: dict[str, Path], name: str, data: Any) -> None:
    files = sorted(path for path in folders[name].rglob('*') if path.suffix in ('.txt', '.csv', '.xml') and path.stat().st_size)
    file = data.draw(st.sampled_from(files))
    text = file.read_text()
    starts = [n for n, sign in enumerate(text) if sign.isdigit() and (n == 0 or text[n - 1] in ' ,>"\n')]
    start = data.draw(st.sampled_from(starts))
    end = next((n for n in range(start, len(text)) if text[n] in ' ,<"\n'), len(text))
    # A number that is missing cannot be noticed where the confidence behind a box takes its place.
    signs = ['x', '1e999', 'nan', *([] if name == 'yolo' else [''])]
    check(folders[name], name, file, text[:start] + data.draw(st.sampled_from(signs)) + text[end:])


@pytest.mark.parametrize('name', JSON | LINES)
@given(data=st.data())
@COUNTED
def test_a_file_that_is_cut_off_is_read_alike_or_not(folders: dict[str, Path], name: str, data: Any) -> None:
    suffixes = ('.txt', '.csv', '.xml', '.json')
    files = sorted(path for path in folders[name].rglob('*') if path.suffix in suffixes and path.stat().st_size)
    file = data.draw(st.sampled_from(files))
    text = file.read_text()
    if name in JSON or file.suffix == '.xml':  # lines that are missing at the end of a list cannot be noticed
        check(folders[name], name, file, text[: data.draw(st.integers(0, len(text.rstrip()) - 1))])
