"""COCO's JSON read without its polygons, as detection needs it."""

import json
from pathlib import Path

import pytest

from phalanx.data.checks import AnnotationError
from phalanx.data.coco import read_boxes

POLYGONS = [[1, 2.5, 3e1, 4, 5, 6], [-1, 2, 3, 4, 5, 6]]


def test_polygons_of_objects_with_boxes_are_left_out_and_nothing_else(tmp_path: Path) -> None:
    name = 'a "segmentation": [[1, 2]] \\"segmentation": [[3]]'
    boxed = {'name': name, 'segmentation': POLYGONS, 'bbox': [1, 2, 3, 4], 'id': 1}
    runs = {'segmentation': {'size': [2, 2], 'counts': [1, 3]}, 'bbox': [0, 0, 1, 1], 'id': 2}
    for indent in (None, 1):
        file = tmp_path / 'a.json'
        file.write_text(json.dumps({'annotations': [boxed, runs], 'images': []}, indent=indent))
        assert read_boxes(file) == {'annotations': [boxed | {'segmentation': [[]]}, runs], 'images': []}


def test_polygons_stay_if_an_object_has_no_box_but_them(tmp_path: Path) -> None:
    content = {'annotations': [{'segmentation': POLYGONS, 'bbox': []}, {'segmentation': POLYGONS, 'bbox': [1, 2, 3, 4]}]}
    (tmp_path / 'a.json').write_text(json.dumps(content), encoding='utf-16')
    assert read_boxes(tmp_path / 'a.json') == content
    (tmp_path / 'a.json').write_text(json.dumps(content))
    assert read_boxes(tmp_path / 'a.json') == content


def test_an_error_has_its_place_in_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / 'a.json').write_text('{"annotations": [{"segmentation": [[1, 2, 3, 4, 5, 6]], "bbox": [1, 2}]}')
    with pytest.raises(AnnotationError, match=r'column 70 \(char 69\)'):
        read_boxes(tmp_path / 'a.json')
