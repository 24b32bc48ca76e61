"""Large COCO files: `phalanx new` holds neither their text nor their outlines in memory, and finds the same in them."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drawn
from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.samples import AnnotationSet, LeftOut
from phalanx.curation.prepare.tree import Tree

SIZE = (64, 48)


def content(outlines: list[Any], images: int = 1) -> dict[str, Any]:
    """A COCO file with an object for each outline, in turn on each of the images."""
    return {
        'images': [{'id': n, 'file_name': f'{n}.png', 'width': SIZE[0], 'height': SIZE[1]} for n in range(images)],
        'annotations': [
            {'id': n, 'image_id': n % images, 'category_id': 1, 'bbox': [5, 6, 20, 10], 'segmentation': outline}
            for n, outline in enumerate(outlines)
        ],
        'categories': [{'id': 1, 'name': 'cat'}],
    }


def read(root: Path) -> AnnotationSet:
    refused: dict[str, LeftOut] = {}
    found = find_annotations(Tree(root), ['coco'], refused)
    assert 'coco' in found, refused
    return found['coco']


def test_a_file_is_read_with_a_fraction_of_its_size_in_memory(tmp_path: Path) -> None:
    """Its JSON as objects of Python takes eight times its size."""
    first = drawn.draw(tmp_path / '0.png', 0, SIZE)
    for number in range(1, 100):
        (tmp_path / f'{number}.png').hardlink_to(first)
    rng = np.random.default_rng(0)
    outlines = [[rng.uniform(0, 48, 1500).round(2).tolist()] for _ in range(1000)]
    file = tmp_path / 'all.json'
    file.write_text(json.dumps(content(outlines, images=100)))
    del outlines
    tracemalloc.start()
    try:
        found = read(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(bool(one.outline) for sample in found.samples for one in sample.instances) == 1000
    assert peak < file.stat().st_size / 2


OUTLINES = [
    [[1, 2, 30.5, 4, 20, 3e1]],
    [[1, 2, 3, 4, 5, 6], [10.25, 11, 30, 11, 30, 40.125, 10, 40]],
    {'size': [48, 64], 'counts': [100, 50, 48 * 64 - 150]},
    [],
    [[0, 0, 40, 0, 40, 40, 0, 40]],
    [[1, 2, 3000, 4, 5, 6]],  # far outside
    [[1, 2, 3, 4]],
    [[1, 2, 3, 4, 5, 6], []],
    [[1, 2, True, 4, 5, 6]],
    'bytes 20 to 90',
    'bytes 0 to 999999999999999',
]


@pytest.mark.parametrize('indent', [None, 1])
def test_outlines_that_stay_in_the_file_are_those_of_the_whole_json(tmp_path: Path, indent: int | None) -> None:
    """A file in UTF-16 is read as a whole."""
    described = []
    for encoding in ('utf-8', 'utf-16'):
        drawn.draw(tmp_path / encoding / '0.png', 0, SIZE)
        (tmp_path / encoding / 'all.json').write_bytes(json.dumps(content(OUTLINES), indent=indent).encode(encoding))
        found = read(tmp_path / encoding)
        shapes = [list(one.outline) for one in found.samples[0].instances]
        described.append([[np.ravel(vars(shape).popitem()[1]).tolist() for shape in several] for several in shapes])
    assert described[0] == described[1]
    assert [len(several) for several in described[0]] == [1, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0]


def test_numbers_that_are_no_json_are_named(tmp_path: Path) -> None:
    drawn.draw(tmp_path / '0.png', 0, SIZE)
    text = json.dumps(content([[[1, 2, 3, 4, 5, 6]], [[1, 2, 9, 9, 5, 7]]])).replace('9, 9', '9 9,')
    (tmp_path / 'all.json').write_text(text)
    found = read(tmp_path)
    assert found.without_outline == {
        tmp_path / '0.png': f"{tmp_path}/all.json: annotation 1 ('cat'): segmentation: is not JSON "
        "(Expecting ',' delimiter: line 1 column 11 (char 10))"
    }
    assert [bool(one.outline) for one in found.samples[0].instances] == [True, False]
