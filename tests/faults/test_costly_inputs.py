"""Small inputs that would cost much: what one may cost in time and memory follows from its size, and each reader refuses the
rest with the name of the file. (Images have theirs in test_hostile_images.py, `.pdparams` in unit/test_convert_pdparams.py.)
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import resource
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import lmdb
import pytest
import torch
from PIL import Image

from phalanx.config.read import ConfigError, Node, load_yaml, override, read
from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.tree import Tree
from phalanx.data.folders import read_class_names
from phalanx.data.image import read_image
from phalanx.data.samples import SampleError
from phalanx.data.texts import parse_total_text
from phalanx.families.detection.data.coco import CocoJson
from phalanx.families.detection.data.voc import PascalVOC
from phalanx.families.detection.data.yolo import YoloText
from phalanx.families.recognition.data.lmdb_sets import Lmdb
from phalanx.paddle.configs import dialect_of, translate
from phalanx.system.errors import CheckpointError
from phalanx.weights.finding import find
from phalanx.weights.reading import read_weights

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
    'aliases in a row': ('a0: &a0 [1]\n' + '\n'.join(f'a{n + 1}: &a{n + 1} [*a{n}]' for n in range(400)), 'nested too deeply'),
    'lists in lists': ('a: ' + '[' * 400 + ']' * 400, 'nested too deeply'),
    'lists without end': ('a: ' + '[' * 500, 'nested too deeply'),
    'a number to the base of 60': ('a: ' + ':'.join('1' * 200_000), 'too long'),
    'a long text': ('a: ' + 'x' * 4_000_001, 'the limit is 4,000,000'),
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
        load_yaml(tmp_path / 'data.yaml')
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


def write_bases(folder: Path, files: dict[str, list[str]], key: str, content: str) -> Path:
    """{name: the names of its bases}; the path of the first. All say `content`, and each something of its own."""
    for number, (name, bases) in enumerate(files.items()):
        (folder / f'{name}.yml').write_text(f'{key}: [{", ".join(f"{base}.yml" for base in bases)}]\n{content}own{number}: 1\n')
    return folder / f'{next(iter(files))}.yml'


def diamond(levels: int, width: int) -> dict[str, list[str]]:
    return {**{f'f{level}': [f'f{level + 1}'] * width for level in range(levels)}, f'f{levels}': []}


MARKS = {  # a key and a value by which a configuration is known to be one of each project
    'ours': ('_base_', 'task: segmentation\n'),
    'PaddleSeg': ('_base_', 'iters: 1\n'),
    'PaddleDetection': ('_BASE_', 'architecture: YOLOv3\nLearningRate: {}\n'),
}


def read_whole(path: Path) -> object:
    dialect = dialect_of(path)
    return translate(path, dialect) if dialect else read(path)


@pytest.mark.parametrize('whose', MARKS)
@pytest.mark.parametrize('files', [diamond(1000, 1), {'a': ['b'] * 100, 'b': []}], ids=['a chain', 'one many times'])
def test_too_many_bases(tmp_path: Path, whose: str, files: dict[str, list[str]]) -> None:
    path = write_bases(tmp_path, files, *MARKS[whose])
    with bounded(), pytest.raises(ConfigError, match=rf'\.yml: `{MARKS[whose][0]}` leads to more than 32 files'):
        read_whole(path)


def test_bases_of_bases_are_read_once(tmp_path: Path) -> None:
    """Three of three of three ..., 30 levels deep: each file is joined once, and what a recipe says is what all say."""
    path = write_bases(tmp_path, diamond(30, 3), *MARKS['ours'])
    with bounded():
        assert set(read(path).value) == {'task', *(f'own{number}' for number in range(31))}


def test_bases_of_bases_of_the_originals(tmp_path: Path) -> None:
    """They are refused for what they lack, and only for that."""
    for whose in ('PaddleSeg', 'PaddleDetection'):
        path = write_bases(tmp_path, diamond(30, 3), *MARKS[whose])
        with bounded(), pytest.raises(ConfigError, match=rf'{whose}\]'):
            read_whole(path)


def test_many_classes(tmp_path: Path) -> None:
    with bounded():
        assert len(read_class_names(tuple(f'name{number}' for number in range(200_000)), tmp_path)) == 200_000


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
        PascalVOC(root=tmp_path, train='list.txt', classes=('cat',)).split('train')


LONG = 300_000  # characters
LINES = {  # name of the file -> its text, and the format that reads it
    'an outline that was cut off.json': ('{"imageData": "' + 'A' * LONG, 'labelme'),
    'a page.hocr': (f'<div class="ocr_page" title="{"x" * LONG}">', 'hocr'),
    'digits.txt': ('1' * LONG, 'text_files'),
    'blanks.txt': (f'{"1 " * 8}a{" " * LONG}', 'dota'),
    'more blanks.txt': (f'a{" " * LONG}', 'kitti'),
}


@pytest.mark.parametrize('name', LINES)
def test_a_long_line_in_a_folder_of_annotations(tmp_path: Path, name: str) -> None:
    text, form = LINES[name]
    (tmp_path / name).write_text(text)
    for image in (f'{Path(name).stem}.png', 'b.png'):
        Image.new('L', (8, 8)).save(tmp_path / image)
    with bounded():
        found = find_annotations(Tree(tmp_path), [form])
    assert [*found] == ([form] if name == 'digits.txt' else [])


def test_blank_lines_of_total_text(tmp_path: Path) -> None:
    with bounded():
        assert parse_total_text('\n' * LONG, tmp_path / 'a.txt') == []


def test_a_long_value_of_a_recipe_in_a_message() -> None:
    with bounded(), pytest.raises(ConfigError, match='xxx'):
        raise ConfigError(['x' * LONG])


def test_a_png_whose_pixels_unpack_to_gigabytes(tmp_path: Path) -> None:
    """A header of 64 x 64 pixels, and a megabyte of compressed zeros in the place of its 12 kB."""
    packer = zlib.compressobj(9, wbits=-15)
    megabyte = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    sum_of_zeros = (((400 << 20) % 65521) << 16) + 1  # Adler's
    data = encoded_png(64, 64, b'\x78\xda' + megabyte * 400 + b'\3\0' + sum_of_zeros.to_bytes(4, 'big'))
    (tmp_path / 'a.png').write_bytes(data)
    with bounded(), contextlib.suppress(SampleError):  # what is too much may be left
        assert read_image(tmp_path / 'a.png').shape == (64, 64, 3)


def encoded_png(width: int, height: int, content: bytes) -> bytes:
    header = width.to_bytes(4, 'big') + height.to_bytes(4, 'big') + b'\x08\x02\0\0\0'
    chunks = ((b'IHDR', header), (b'IDAT', content), (b'IEND', b''))
    packed = (len(data).to_bytes(4, 'big') + kind + data + zlib.crc32(kind + data).to_bytes(4, 'big') for kind, data in chunks)
    return b'\x89PNG\r\n\x1a\n' + b''.join(packed)


def tar(*members: tuple[bytes, int, bytes]) -> bytes:
    """Members of a kind, of a size that they claim, and with the bytes that they have."""
    packed = bytearray()
    for kind, size, content in members:
        member = tarfile.TarInfo('a.npz')
        member.type, member.size = kind, size
        packed += member.tobuf(tarfile.GNU_FORMAT) + content.ljust(-(-len(content) // 512) * 512, b'\0')
    return bytes(packed) + bytes(1024)


def zipped(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def npy(shape: str, descr: str = "'<f4'", content: bytes = b'') -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b'\x93NUMPY\1\0' + struct.pack('<H', len(header)) + header + content


def overlapping(copies: int) -> bytes:
    """A zip archive of one megabyte of zeros, which its directory names again and again."""
    data = zipped(('a00000.npz', bytes(1 << 20)))
    start = data.index(b'PK\1\2')
    entry, end = data[start : data.index(b'PK\5\6')], data[data.index(b'PK\5\6') :]
    directory = b''.join(entry.replace(b'a00000', b'a%05d' % number) for number in range(copies))
    counts = struct.pack('<HHII', copies, copies, len(directory), start)
    return data[:start] + directory + end[:8] + counts + end[20:]


def with_record(content: bytes) -> bytes:
    """A file of `torch.save` whose tensor was packed, as torch itself never does it."""
    file = io.BytesIO()
    torch.save({'w': torch.ones(3)}, file)
    with zipfile.ZipFile(file) as archive:
        return zipped(*((name, content if name.endswith('/data/0') else archive.read(name)) for name in archive.namelist()))


def program(opcodes: bytes) -> bytes:
    """A file of `torch.save` with a pickle of one's own."""
    return zipped(('archive/data.pkl', b'\x80\x02' + opcodes + b'.'), ('archive/version', b'3\n'))


ZEROS = 66 << 20  # bytes; packed they are a thousandth
MANY = 'is not a tar archive of weights: its headers take more than'
WEIGHTS: dict[str, tuple[str, Callable[[], bytes], str]] = {  # a suffix, the content, and why it is refused
    'gzip of zeros': ('.tar.gz', lambda: gzip.compress(bytes(ZEROS), 9), 'weights do not compress that well'),
    'gzip in many parts': ('.tar.gz', lambda: gzip.compress(b'') * 50_000, 'is none of the files of weights'),
    'tar of many members': ('.tar.gz', lambda: gzip.compress(tar((b'0', 0, b''))[:512] * 100_000 + bytes(1024)), MANY),
    'tar with a long header': ('.tar', lambda: tar((b'x', 1 << 20, b'1' * (1 << 20)), (b'0', 0, b'')), MANY),
    'tar with a long name': ('.tar', lambda: tar((b'L', 1 << 20, b'1' * (1 << 20)), (b'0', 0, b'')), MANY),
    'tar whose header claims 4 GB': ('.tar', lambda: tar((b'x', 1 << 32, b''), (b'0', 0, b'')), MANY),
    'tar whose member claims 1 TB': ('.tar', lambda: tar((b'0', 1 << 40, b'')), 'not a complete tar archive'),
    'zip of zeros': ('.zip', lambda: zipped(('a.npz', bytes(ZEROS))), 'weights do not compress that well'),
    'zip of one member many times': ('.zip', lambda: overlapping(20_000), 'not a complete|compress that well'),
    'npz of zeros': ('.npz', lambda: zipped(('w.npy', npy(f'({ZEROS},)', "'|u1'", bytes(ZEROS)))), 'compress that well'),
    'npz that claims 4 TB': ('.npz', lambda: zipped(('w.npy', npy('(1000000, 1000000)'))), 'not a complete .npz file'),
    'npz that claims less than none': ('.npz', lambda: zipped(('w.npy', npy('(-1,)'))), 'not a complete .npz file'),
    'npz of records without end': ('.npz', lambda: zipped(('w.npy', npy('(1,)', '[' * 5000))), 'not a complete .npz file'),
    'npz with a long header': ('.npz', lambda: zipped(('w.npy', npy('(' + '1,' * 30_000 + ')'))), 'not a complete .npz file'),
    'npz of objects': ('.npz', lambda: zipped(('w.npy', npy('(1,)', "'|O'", bytes(8)))), 'not a complete .npz file'),
    'pt of zeros': ('.pt', lambda: with_record(bytes(ZEROS)), 'weights do not compress that well'),
    'pt that makes 1 TB': (
        '.pt',
        lambda: program(b'c__builtin__\nbytearray\n\x8a\x06\0\0\0\0\0\1\x85R'),
        'torch.save|run code',
    ),
    'pt of lists that double': ('.pt', lambda: program(b']' + b'q\0(h\0h\0tq\0' * 60), 'holds no weights'),
    'safetensors that claim 8 EB': ('.safetensors', lambda: b'\xff' * 7 + b'\x7f{}', 'not a complete .safetensors file'),
    'safetensors of a large array': (
        '.safetensors',
        lambda: (
            (header := b'{"w": {"dtype": "F32", "shape": [1000000, 1000000], "data_offsets": [0, 4000000000000]}}')
            and struct.pack('<Q', len(header)) + header
        ),
        'not a complete .safetensors file',
    ),
    'safetensors of lists without end': (
        '.safetensors',
        lambda: struct.pack('<Q', 200_001) + b'{' + b'[' * 200_000,
        'not a complete .safetensors file',
    ),
}


@pytest.mark.parametrize('name', WEIGHTS)
def test_weights(tmp_path: Path, name: str) -> None:
    suffix, content, why = WEIGHTS[name]
    (tmp_path / f'w{suffix}').write_bytes(content())
    with bounded(), pytest.raises(CheckpointError, match=rf'w{suffix}: .*({why})'):
        read_weights(find(tmp_path / f'w{suffix}'))


def test_a_count_of_lmdb(tmp_path: Path) -> None:
    """Sixteen kilobytes that claim a billion samples, of which a training would make a random order."""
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b'num-samples', b'999999999')
    with bounded(), pytest.raises(ValueError, match=r'data\.mdb has \d+ bytes, too few for the 999999999 samples'):
        Lmdb(tmp_path)
