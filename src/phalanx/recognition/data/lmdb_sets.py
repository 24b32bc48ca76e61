"""LMDB data sets in the layout of the field: MJSynth, SynthText and the benchmarks are handed around in it.

Keys are `num-samples` and, for samples from 1 on, `image-000000001`, an encoded image, and `label-000000001`, UTF-8 text.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np

from phalanx.folders import check_folder
from phalanx.recognition.data.label_files import LabelFile
from phalanx.recognition.data.source import Rng, Shares, Source, TextImage
from phalanx.task import Draw, Image, SampleError, Split

DATABASE = 'data.mdb'  # the file in every LMDB folder
COUNT = b'num-samples'
READ_AHEAD = 1000  # samples that a conversion writes at a time


class LmdbSets:
    """The LMDB folders at or below those named for each split, relative to `root`.

    `train_shares`: how much of each training folder an epoch takes, 1 being all of it; all 1 when there are none. Raises
    ValueError when the package `lmdb` is not installed.
    """

    def __init__(
        self,
        *,
        root: Path,
        train: tuple[str, ...] = ('training',),
        eval: tuple[str, ...] = ('validation',),
        train_shares: tuple[float, ...] = (),
    ) -> None:
        _check_installed()
        if train_shares and len(train_shares) != len(train):
            raise ValueError(f'there are {len(train)} training folders, but {len(train_shares)} train_shares')
        self.root, self.folders = root, {'train': train, 'eval': eval}
        self.shares = {'train': train_shares or (1.0,) * len(train), 'eval': (1.0,) * len(eval)}

    def split(self, split: Split) -> Source:
        check_folder(self.root)
        parts = [_below(self.root / folder) for folder in self.folders[split]]
        return Shares(parts, self.shares[split])


class Lmdb:
    """A Source of the samples in one LMDB folder.

    It is opened for every read, which costs 20 us: LMDB forbids to have a folder open twice in a process, or over a fork, and
    so neither loader workers nor a second data set of the same folder need to care.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ValueError when it is of another layout."""
        self.folder = folder
        (count,) = self._values(COUNT)
        if count is None:
            raise ValueError(f'{folder}: has no key {COUNT.decode()!r}, so it is no LMDB data set of texts')
        self.count = int(count)

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f'{self.folder} {_key("image", index).decode()}'

    def read(self, draw: Draw, rng: Rng) -> TextImage:
        data, text = self._values(_key('image', draw.index), _key('label', draw.index))
        if data is None or text is None:
            raise SampleError(f'{self.name(draw.index)}: is not in the database, which claims to hold {self.count} samples')
        try:
            return _decoded(data, self.name(draw.index)), text.decode()
        except UnicodeDecodeError as error:
            raise SampleError(f'{self.name(draw.index)}: its text is not UTF-8 (byte {error.start})') from None

    def _values(self, *keys: bytes) -> list[bytes | None]:
        # No lock file: the data may lie on a read-only disk. No read-ahead: samples are read in random order.
        environment = import_module('lmdb').open(str(self.folder), readonly=True, lock=False, readahead=False, meminit=False)
        with environment, environment.begin() as transaction:
            return [transaction.get(key) for key in keys]


def write_lmdb(label_file: Path, root: Path, folder: Path) -> int:
    """Writes the images and texts of a label file as an LMDB folder and returns how many; image files are copied as they are.

    Raises FileNotFoundError and ValueError for what is wrong with the list, FileExistsError when `folder` holds one already.
    """
    _check_installed()
    if (folder / DATABASE).exists():
        raise FileExistsError(f'{folder}: holds an LMDB data set already')
    source = LabelFile(root, label_file)
    folder.mkdir(parents=True, exist_ok=True)
    size = sum(source.path(index).stat().st_size + 16384 for index in range(len(source)))  # pages are not filled
    environment = import_module('lmdb').open(str(folder), map_size=size + 2**24)
    for start in range(0, len(source), READ_AHEAD):
        with environment.begin(write=True) as transaction:
            for index in range(start, min(start + READ_AHEAD, len(source))):
                transaction.put(_key('image', index), source.path(index).read_bytes())
                transaction.put(_key('label', index), source.texts[index].encode())
    with environment.begin(write=True) as transaction:
        transaction.put(COUNT, str(len(source)).encode())  # last: what was broken off is no data set
    environment.close()
    return len(source)


def _below(folder: Path) -> Source:
    """The LMDB folders at or below `folder`, one after the other. Raises FileNotFoundError when there are none."""
    found = sorted(file.parent for file in folder.rglob(DATABASE))
    if not found:
        raise FileNotFoundError(f'{folder}: holds no LMDB data set (no {DATABASE} at or below it)')
    return Shares([Lmdb(place) for place in found], (1.0,) * len(found))


def _key(kind: str, index: int) -> bytes:
    return f'{kind}-{index + 1:09}'.encode()


def _decoded(data: bytes, name: str) -> Image:
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION) if data else None
    if pixels is None:
        raise SampleError(f'{name}: is not an image that OpenCV can decode ({len(data)} bytes)')
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)


def _check_installed() -> None:
    if find_spec('lmdb') is None:
        raise ValueError('LMDB data sets need the package lmdb: pip install "phalanx-vision[lmdb]"')
