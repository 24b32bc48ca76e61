"""Whatever stands in a file of annotations, it is read or what is wrong is reported; nothing else comes of it."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from phalanx.curation.prepare.coco import read_coco
from phalanx.curation.prepare.label_maps import BACKGROUND, MEANING, paint_labels
from phalanx.curation.prepare.labelme import read_labelme
from phalanx.curation.prepare.samples import AnnotationSet
from phalanx.data.checks import AnnotationError

W, H = 6, 4
LABELME = {
    'imagePath': 'a.png',
    'imageWidth': W,
    'imageHeight': H,
    'shapes': [
        {'label': 'cat', 'points': [[0, 0], [3, 0], [3, 3]], 'shape_type': 'polygon'},
        {'label': 'dog', 'points': [[1, 1], [2, 2.5]], 'shape_type': 'circle'},
    ],
}
COCO = {
    'images': [{'id': 1, 'file_name': 'a.png', 'width': W, 'height': H}],
    'categories': [{'id': 1, 'name': 'cat'}, {'id': 2, 'name': 'dog'}],
    'annotations': [
        {'image_id': 1, 'category_id': 1, 'segmentation': [[0, 0, 3, 0, 3, 3]], 'iscrowd': 0},
        {'image_id': 1, 'category_id': 2, 'segmentation': {'size': [H, W], 'counts': 'd04'}},
        {'image_id': 1, 'category_id': 2, 'segmentation': {'size': [H, W], 'counts': [20, 4]}},
    ],
}
NUMBERS = st.integers(-(10**400), 10**400) | st.integers(-9, 30) | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(['a.png', '../a.png', 'a.png\0', '.', 'cat']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(['id', 'size', 'counts', 'label']), inner),
    max_leaves=6,
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all parts of a tree but the whole."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [*([path] if path else []), *(place for key, child in inner for place in places(child, (*path, key)))]


def changed(tree: Any, place: tuple[Any, ...], value: Any) -> str:
    tree = copy.deepcopy(tree)
    part = tree
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return json.dumps(tree)


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('annotations')
    Image.fromarray(np.zeros((H, W, 3), np.uint8)).save(folder / 'a.png')
    return folder


def check_labels(found: AnnotationSet) -> None:
    """Label maps of all samples have the size of the image and values that have a meaning."""
    names = (BACKGROUND, *(name for name in found.class_names if name not in MEANING))
    for sample in found.samples:
        labels = paint_labels(sample, names)
        assert labels.shape == (H, W)
        assert set(labels.flat) <= {*range(len(names)), 255}


@settings(max_examples=300)
@given(place=st.sampled_from(places(LABELME)), value=VALUES)
def test_any_change_of_a_labelme_file_is_read_or_reported(folder: Path, place: tuple[Any, ...], value: Any) -> None:
    (folder / 'a.json').write_text(changed(LABELME, place, value))
    found = read_labelme(folder, None)
    assert len(found.samples) + len(found.left_out) == 1
    check_labels(found)


def test_the_unchanged_files_are_read(folder: Path) -> None:
    """The two objects of run lengths are the last column, once as text and once as numbers."""
    (folder / 'a.json').write_text(json.dumps(LABELME))
    (folder / 'coco.js').write_text(json.dumps(COCO))
    for found in (read_labelme(folder, None), read_coco([folder / 'coco.js'], folder, outlined=True)):
        assert (len(found.samples), found.class_names, found.left_out) == (1, ('cat', 'dog'), [])
    assert paint_labels(found.samples[0], (BACKGROUND, 'cat', 'dog'))[:, -1].tolist() == [2] * H


@settings(max_examples=300)
@given(place=st.sampled_from(places(COCO)), value=VALUES)
def test_any_change_of_a_coco_file_is_read_or_reported(folder: Path, place: tuple[Any, ...], value: Any) -> None:
    file = folder / 'coco.js'
    file.write_text(changed(COCO, place, value))
    try:
        found = read_coco([file], folder, outlined=True)
    except AnnotationError as error:
        assert str(error).startswith(f'{file}: ')
        return
    assert found.samples or found.left_out or json.loads(file.read_text())['images'] == []
    check_labels(found)
