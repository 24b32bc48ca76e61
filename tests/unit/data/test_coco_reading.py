"""COCO's JSON read in blocks, without the polygons that detection does not need."""

import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from phalanx.data import coco_file
from phalanx.data.checks import AnnotationError
from phalanx.data.coco_file import read_blocks
from phalanx.families.detection.data.coco import read_annotations

POLYGONS = [[1, 2.5, 3e1, 4, 5, 6], [-1, 2, 3, 4, 5, 6]]
BOXED = {'name': 'a "segmentation": [[1, 2]] \\"segmentation": [[3]]', 'segmentation': POLYGONS, 'bbox': [1, 2, 3, 4], 'id': 1}
BARE = {'segmentation': POLYGONS, 'id': 2, 'name': 'ü]}'}
RUNS = {'segmentation': {'size': [2, 2], 'counts': [1, 3] * 40}, 'bbox': [0, 0, 1, 1], 'id': 3}
# What looks like the end of an entry or of polygons, and is none
MISLEADING = [
    {'name': '},{', 'bbox': [1, 2, 3, 4], 'parts': [{'a': 1}, {'b': [{}, {}]}]},
    {'segmentation': [[1, 2], 'a'], 'bbox': [1, 2, 3, 4]},
    {'segmentation': [[1, 2], [[3]], 'a]]'], 'bbox': [1, 2, 3, 4]},
]
LAST = {'bbox': [1, 2, 3, 4], 'segmentation': POLYGONS}
PARTS = {
    'info': {'images': [1], 'year': 2026},
    'images': [{'id': n} for n in range(5)],
    'annotations': [BOXED, BARE, RUNS, 7, 'x', None, [], {}, *MISLEADING, *[{'id': n} for n in range(9)], LAST],
    'categories': [{'id': 1, 'name': 'röt a'}],
    'licenses': [],
}


def read(content: str | bytes, folder: Path) -> dict[str, list[Any]]:
    """The entries of each part; annotations must be the last."""
    file = folder / 'a.json'
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    found: dict[str, list[Any]] = {'images': [], 'categories': [], 'annotations': []}
    for part, first, entries in read_blocks(file):
        assert first == len(found[part]) and (part == 'annotations' or not found['annotations'])
        found[part] += entries
    return found


@pytest.mark.parametrize('block', (1, 5, 64, 1 << 20))
@pytest.mark.parametrize('indent', (None, 1))
def test_blocks_of_any_length_give_the_entries_of_the_file(
    block: int, indent: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coco_file, 'BLOCK', block)
    names = list(PARTS)
    for order in (names, names[::-1], sorted(names)):
        written = {name: PARTS[name] for name in order}
        for text in (json.dumps(written, indent=indent), '\ufeff' + json.dumps(written, indent=indent, ensure_ascii=False)):
            found = read(text, tmp_path)
            assert {key: found[key] for key in ('images', 'categories')} == {
                key: PARTS[key] for key in ('images', 'categories')
            }
            boxed, *others, last = found['annotations']
            assert boxed.pop('segmentation') and boxed == {key: BOXED[key] for key in BOXED if key != 'segmentation'}
            assert others == PARTS['annotations'][1:-1]
            assert last['bbox'] == [1, 2, 3, 4]


def test_other_encodings_are_read_as_a_whole(tmp_path: Path) -> None:
    assert read(json.dumps(PARTS).encode('utf-16'), tmp_path) == {
        key: PARTS[key] for key in ('images', 'categories', 'annotations')
    }


def test_a_fault_has_its_place_in_the_file_itself(tmp_path: Path) -> None:
    with pytest.raises(AnnotationError, match=r'column 70 \(char 69\)'):
        read('{"annotations": [{"segmentation": [[1, 2, 3, 4, 5, 6]], "bbox": [1, 2}]}', tmp_path)


@pytest.mark.parametrize(
    ('text', 'reason'),
    (
        ('', 'is not JSON'),
        ('[]', 'needs lists `images`, `annotations` and `categories`'),
        ('{"images": [], "annotations": [], "categories": {}}', 'needs lists'),
        ('{"images": [], "annotations": []}', 'needs lists'),
        ('{"images": [], "annotations": [], "categories": []} x', 'is not JSON'),
        ('{"images": [], "annotations": [1,], "categories": []}', 'is not JSON'),
        ('{"images": [], "annotations": [1 2], "categories": []}', 'is not JSON'),
        ('{"images": [], "annotations": [], "categories": [], "images": [{"id": 1}]}', '`images` occurs twice'),
        ('{"images": [{"file_name": "\udcff"}], "annotations": [], "categories": []}', 'is not UTF-8'),
    ),
)
def test_other_content_is_refused_with_the_reason(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(AnnotationError, match=reason):
        read(text.encode('utf-8', 'surrogateescape'), tmp_path)


def test_a_box_takes_a_hundred_bytes_however_long_its_outline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coco_file, 'BLOCK', 1 << 14)

    def peak(boxes: int, points: int) -> int:
        outline = [[round(0.37 * n, 2) for n in range(2 * points)]]
        box: Mapping[str, Any] = {
            'image_id': 1,
            'category_id': 1,
            'bbox': [1, 2, 30, 40],
            'segmentation': outline,
            'iscrowd': 0,
        }
        content = {
            'images': [{'id': 1, 'file_name': 'a.jpg'}],
            'annotations': [{'id': n, **box} for n in range(boxes)],
            'categories': [{'id': 1, 'name': 'a'}],
        }
        file = tmp_path / f'{boxes}_{points}.json'
        file.write_text(json.dumps(content))
        tracemalloc.start()
        try:
            read_annotations([file], tmp_path)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10, 20)  # what the first call imports
    assert (peak(3000, 20) - peak(1000, 20)) / 2000 < 100
    assert abs(peak(1000, 60) - peak(1000, 20)) < 100_000
