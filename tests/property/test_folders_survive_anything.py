"""Whatever stands in an annotation file of a folder, `phalanx new` reads it or says what is wrong; nothing else comes of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drawn
from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.mask_values import infer_meaning
from phalanx.curation.prepare.samples import AnnotationSet
from phalanx.curation.prepare.tree import IMAGES, Tree
from phalanx.data.checks import AnnotationError

TRIALS = int(os.environ.get('READER_INPUTS', '20'))
JUNK: tuple[Any, ...] = (
    None,
    0,
    -1,
    2.5,
    1e300,
    'x',
    '',
    '../a',
    True,
    [],
    {},
    [1],
    [[]],
    [{'x': 1}],
    {'a': 1},
    float('nan'),
    10**400,
)
DRAWINGS = [
    *(drawn.voc, drawn.coco, drawn.yolo, drawn.csv_boxes, drawn.csv_without_header, drawn.cvat, drawn.label_studio),
    *(drawn.labelme, drawn.supervisely, drawn.yolo_polygons, drawn.masks_palette, drawn.masks_coloured, drawn.pairs),
    *(drawn.label_file, drawn.csv_texts, drawn.text_files, drawn.pages_paddle, drawn.pages_icdar),
    *(drawn.page_xml, drawn.alto, drawn.hocr, drawn.tesseract_boxes),
    *(drawn.html_files, drawn.csv_html, drawn.pubtabnet, drawn.scitsr),
]


def mutated(data: bytes, rng: np.random.Generator, *, is_json: bool) -> bytes:
    """A value of JSON replaced by another, or some bytes replaced, left out or doubled."""
    if is_json and rng.random() < 0.8:
        tree = json.loads(data)
        replace_one(tree, rng)
        return json.dumps(tree).encode()
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        place, kind = int(rng.integers(len(changed) + 1)), rng.integers(3)
        if kind == 0:
            changed[place : place + 1] = rng.bytes(1)
        elif kind == 1:
            del changed[place : place + int(rng.integers(1, 12))]
        else:
            changed[place:place] = rng.choice(
                [b',', b'\t', b'\n', b'"', b'-1', b'nan', b'1e999', b'<', b'>', b'9' * 30, b'\xff', b'\0']
            )
    return bytes(changed)


def replace_one(tree: Any, rng: np.random.Generator) -> None:
    """Goes down at random and puts junk where it stops."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        if not len(keys):
            return
        key = keys[int(rng.integers(len(keys)))]
        if not isinstance(tree[key], dict | list) or not tree[key] or rng.random() < 0.25:
            tree[key] = JUNK[int(rng.integers(len(JUNK)))]
            return
        tree = tree[key]


def read(folder: Path) -> dict[str, AnnotationSet]:
    held = find_annotations(Tree(folder))
    for found in held.values():
        found.families()
        if masks := [sample.mask for sample in found.samples if sample.mask]:
            with suppress(AnnotationError):
                infer_meaning(masks, found.classes_from)
    return held


@pytest.mark.parametrize('drawing', DRAWINGS, ids=lambda drawing: drawing.__name__)
def test_any_change_of_an_annotation_is_read_or_reported(drawing: Callable[[Path], None], tmp_path: Path) -> None:
    drawing(tmp_path / 'mine')
    assert read(tmp_path / 'mine')
    files = [path for path in sorted((tmp_path / 'mine').rglob('*')) if path.is_file() and path.suffix.lower() not in IMAGES]
    rng = np.random.default_rng(0)
    for _ in range(TRIALS if files else 0):
        file = files[int(rng.integers(len(files)))]
        before = file.read_bytes()
        file.write_bytes(mutated(before, rng, is_json=file.suffix == '.json'))
        for found in read(tmp_path / 'mine').values():
            assert all(isinstance(problem, str) for problem in found.left_out)
        file.write_bytes(before)
