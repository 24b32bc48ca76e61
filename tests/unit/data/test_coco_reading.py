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
from phalanx.families.detection.data import coco
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


PLAIN = {'image_id': 1, 'category_id': 1, 'bbox': [1, 2.5, 30, 40], 'area': 5, 'iscrowd': 0, 'id': 1, 'segmentation': POLYGONS}
UNUSUAL: dict[str, list[Any]] = {
    'image_id': ['a', 1.0, '1', True, None, 99, [1], {}, 1.5, 10**400],
    'category_id': [4.0, '1', True, None, 99, [1], 'b'],
    'bbox': [
        *(None, [], [1, 2, 3], [1, 2, 3, 4, 5], 5, 'abcd', '1234', {'a': 1, 'b': 2, 'c': 3, 'd': 4}, [[1], [2], [3], [4]]),
        *([9, 9, -4, -5], [9, 9, 4, -5], ['1', ' 2', '3e0', '4_0'], ['1', '2', 'x', '4'], [1, 2, True, 4], [1, 2, None, 4]),
        *([1, 2, 2**31, 4], [1, 2, 2**31 + 1, 4], [1, 2, 10**400, 4], [float('nan'), 2, 3, 4], [1, 2, 3, float('inf')]),
    ],
    'area': [None, 0, -1, 2.5, float('nan'), float('inf'), 10**400, '5', True, [5], {}, 2**62, 2**63],
    'iscrowd': [None, 1, True, False, 0.5, float('nan'), 2, '1', 'maybe', [], {}, [1]],
    'ignore': [None, 0, 1, 'x'],
    'keypoints': [None, [], [1, 2, 2]],
    'attributes': [{}, {'rotation': 30}, {'rotation': 'x'}, 5],
    'caption': ['a'],
    'segments_info': [[]],
    'segmentation': [None, [], 'x', {'counts': [1, 3], 'size': [2, 2]}],
}


def outcome(annotations: list[Any], folder: Path) -> object:
    """Digest and notes of a file with these annotations, or the reasons why it is refused."""
    content = {
        'images': [{'id': 1, 'file_name': 'a.jpg', 'width': 50, 'height': 50}, {'id': 'a', 'file_name': 'b.jpg'}],
        'annotations': annotations,
        'categories': [{'id': 1, 'name': 'cat'}, {'id': 4, 'name': 'dog'}],
    }
    file = folder / 'a.json'
    file.write_text(json.dumps(content))
    coco._read_annotations.cache_clear()
    try:
        source = read_annotations([file], folder)[1].source(keep_empty=True)
    except ValueError as error:
        return str(error)
    return source.digest(), source.notes


@pytest.mark.parametrize('outlined', (True, False))
@pytest.mark.parametrize('key', UNUSUAL)
def test_columns_of_objects_are_those_read_one_by_one(
    key: str, outlined: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in UNUSUAL[key]:
        unusual = {name: PLAIN[name] for name in PLAIN if outlined or name != 'segmentation'} | {key: value}
        without = {name: unusual[name] for name in unusual if name != key}
        lists = [PLAIN, unusual, PLAIN], [PLAIN, without], [unusual] * 3
        by_column = [outcome(entries, tmp_path) for entries in lists]
        with monkeypatch.context() as patch:
            patch.setattr(coco, 'parse_plain_objects', lambda *_: None)
            assert by_column == [outcome(entries, tmp_path) for entries in lists], value


def test_objects_are_read_one_by_one_only_in_blocks_with_unusual_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coco_file, 'BLOCK', 1 << 12)
    singly: list[Any] = []
    parse = coco.parse_object
    monkeypatch.setattr(coco, 'parse_object', lambda entry, *rest: (singly.append(entry), parse(entry, *rest))[1])
    entries: list[Any] = [PLAIN | {'id': number} for number in range(1000)]
    outcome(entries, tmp_path)
    assert not singly
    entries[500] = entries[500] | {'ignore': 1}
    outcome(entries, tmp_path)
    assert entries[500]['id'] in [entry['id'] for entry in singly] and len(singly) < 100
