"""Small inputs that would cost much: what one may cost in time and memory follows from its size, and each reader refuses the
rest with the name of the file. (Images have theirs in test_hostile_images.py, `.pdparams` in unit/test_convert_pdparams.py.)
"""

from __future__ import annotations

import contextlib
import json
import resource
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest

from phalanx.config.read import ConfigError, Node, document, override
from phalanx.data.folders import names_from
from phalanx.data.image import read_image
from phalanx.data.samples import SampleError
from phalanx.families.detection.data.coco import CocoJson
from phalanx.families.detection.data.voc import PascalVoc
from phalanx.families.detection.data.yolo import YoloText

SECONDS, MEMORY = 20, 300 << 20  # of processor time; more than the process has already


@contextmanager
def bounded() -> Iterator[None]:
    """Ends what its block does when it takes more than MEMORY, and fails when it takes more than SECONDS."""
    used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limits[1]))
    begun = time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert time.process_time() - begun < SECONDS


def merges(levels: int) -> str:
    """Each letter merges the one before ten times."""
    rows = (f'{new}: &{new} {{<<: [{", ".join([f"*{old}"] * 10)}]}}' for old, new in pairwise(ascii_lowercase[:levels]))
    return '\n'.join(['a: &a {x: 1}', *rows])


YAML = {
    'merges of merges': (merges(26), 'counting aliases'),
    'aliases in a row': (
        'a0: &a0 [1]\n' + '\n'.join(f'a{n + 1}: &a{n + 1} [*a{n}]' for n in range(400)),
        'nested too deeply',
    ),
    'lists in lists': ('a: ' + '[' * 400 + ']' * 400, 'nested too deeply'),
    'lists without end': ('a: ' + '[' * 500, 'nested too deeply'),
    'a number to the base of 60': ('a: ' + ':'.join('1' * 200_000), 'too long'),
    'a long text': ('a: ' + 'x' * 4_000_001, 'more than the 4,000,000 that are read'),
    'a tag on nothing': ('a: !!int ""', "'' cannot be read as int"),
    'a word that is not a bool': ('a: !!bool x', "'x' cannot be read as bool"),
    'a word that is not a time': ('a: !!timestamp x', "'x' cannot be read as timestamp"),
}


@pytest.mark.parametrize('name', YAML)
def test_yaml(tmp_path: Path, name: str) -> None:
    """In a recipe, and in the `data.yaml` of a data set."""
    text, why = YAML[name]
    (tmp_path / 'data.yaml').write_text(text)
    with bounded(), pytest.raises(ConfigError, match=rf'data\.yaml:.*{why}'):
        document(tmp_path / 'data.yaml')
    with bounded(), pytest.raises(ValueError, match=rf'data\.yaml:.*{why}'):
        YoloText(root=tmp_path)


@pytest.mark.parametrize(
    'assignment',
    [
        *(f'a={text[3:]}' for text, _ in YAML.values() if len(text) < 20_000),
        *('a=&a [*a]', '.'.join('a' * 5000) + '=1', 'a.0.' + '9' * 5000 + '=1', 'a.' + '9' * 5000 + '=1'),
    ],
)
def test_assignments(assignment: str) -> None:
    root = Node({'a': Node([Node([], 'here:1')], 'here:1')}, 'here:1')
    with bounded(), pytest.raises(ConfigError, match='--set a'):
        override(root, assignment)


def test_many_classes(tmp_path: Path) -> None:
    with bounded():
        assert len(names_from(tuple(f'name{number}' for number in range(200_000)), tmp_path)) == 200_000


def coco(**changes: Any) -> dict[str, Any]:
    return {
        'images': [{'id': 1, 'file_name': 'a.png', 'height': 9, 'width': 7}],
        'annotations': [{'id': 1, 'image_id': 1, 'category_id': 3, 'bbox': [1, 1, 3, 4]}],
        'categories': [{'id': 3, 'name': 'cat'}],
        **changes,
    }


def coco_split(root: Path, content: str) -> Callable[[], object]:
    (root / 'a.json').write_text(content)
    return lambda: CocoJson(root=root, train='a.json', eval='a.json', train_images='', eval_images='').split('train')


def test_many_categories_of_coco(tmp_path: Path) -> None:
    categories = [{'id': number, 'name': f'name{number}'} for number in range(100_000)]
    read = coco_split(tmp_path, json.dumps(coco(categories=categories)))
    with bounded():
        read()


JSON = {
    'lists without end': '[' * 200_000,
    'lists in lists': '{"images": ' + '[' * 200_000 + ']' * 200_000 + ', "annotations": [], "categories": []}',
    'a number of many digits': '{"images": [{"id": 1' + '0' * 100_000 + '}], "annotations": [], "categories": []}',
}


@pytest.mark.parametrize('name', JSON)
def test_json(tmp_path: Path, name: str) -> None:
    read = coco_split(tmp_path, JSON[name])
    with bounded(), pytest.raises(ValueError, match=r'a\.json: is not '):
        read()


ENTITIES = '<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]>'
XML = {
    'entities of entities': f'{ENTITIES}<annotation>&c;</annotation>',
    'a file of this node': '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><annotation>&b;</annotation>',
    'elements without end': '<annotation>' + '<a>' * 200_000,
    'elements in elements': '<annotation>' + '<a>' * 100_000 + '</a>' * 100_000,
    'many attributes': '<annotation ' + ' '.join(f'a{number}=""' for number in range(50_000)) + '>',
}


@pytest.mark.parametrize('name', XML)
def test_xml(tmp_path: Path, name: str) -> None:
    (tmp_path / 'a.xml').write_text(XML[name])
    (tmp_path / 'list.txt').write_text('a.png a.xml\n')
    with bounded(), pytest.raises(ValueError, match=r'a\.xml: (is not well-formed|has a document type)'):
        PascalVoc(root=tmp_path, train='list.txt', classes=('cat',)).split('train')


def test_a_png_whose_pixels_unpack_to_gigabytes(tmp_path: Path) -> None:
    """A header of 64 x 64 pixels, and a megabyte of compressed zeros in the place of its 12 kB."""
    data = encoded_png(64, 64, zlib.compress(bytes(400 << 20), 9))
    (tmp_path / 'a.png').write_bytes(data)
    with bounded(), contextlib.suppress(SampleError):  # what is too much may be left
        assert read_image(tmp_path / 'a.png').shape == (64, 64, 3)


def encoded_png(width: int, height: int, content: bytes) -> bytes:
    header = width.to_bytes(4, 'big') + height.to_bytes(4, 'big') + b'\x08\x02\0\0\0'
    chunks = ((b'IHDR', header), (b'IDAT', content), (b'IEND', b''))
    packed = (len(data).to_bytes(4, 'big') + kind + data + zlib.crc32(kind + data).to_bytes(4, 'big') for kind, data in chunks)
    return b'\x89PNG\r\n\x1a\n' + b''.join(packed)
