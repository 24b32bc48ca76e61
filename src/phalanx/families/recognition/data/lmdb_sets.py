"""LMDB data sets in the usual layout of text recognition, that of MJSynth, SynthText and the benchmarks.

Keys are `num-samples` and, for samples numbered from 1, `image-000000001` (encoded image) and `label-000000001` (UTF-8 text).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

import cv2

from phalanx.data.folders import check_folder
from phalanx.data.image import decode_image
from phalanx.data.mixing import Shares, check_shares
from phalanx.data.samples import Draw, SampleError, Split
from phalanx.families.recognition.data.source import Source, TextImage
from phalanx.system.buckets import StorePath

DATABASE = 'data.mdb'  # the file in every LMDB folder
COUNT = b'num-samples'
SAMPLES_PER_TRANSACTION = 1000  # written by one transaction of a conversion
MAX_DIGITS = 9  # of the number of samples, as in the keys
UNWRITTEN = 4  # pages that LMDB may have freed before it wrote them
MIN_BYTES_PER_SAMPLE = 32  # the two keys alone take more
MAP_SIZE = 2**40  # bytes of address space of a conversion; disk space is allocated as needed


class LmdbSets:
    """LMDB folders at or below the folders of each split, which are relative to `root`.

    `train_shares`: share of each training folder that an epoch takes; default: 1, all of it. Raises ValueError if the package
    `lmdb` is not installed.
    """

    def __init__(
        self,
        *,
        root: Path,
        train: tuple[str, ...] = ('training',),
        eval: tuple[str, ...] = ('validation',),
        train_shares: tuple[float, ...] = (),
    ) -> None:
        _check_lmdb_installed()
        self.root, self.folders = root, {'train': train, 'eval': eval}
        self.shares = {'train': check_shares(train, train_shares, 'training folders'), 'eval': (1.0,) * len(eval)}

    def split(self, split: Split) -> Source:
        """Open the folders of a split. Raises FileNotFoundError, and ValueError for a damaged or foreign database."""
        check_folder(self.root)
        parts = [_find_databases(self.root / folder) for folder in self.folders[split]]
        return Shares(parts, self.shares[split])


class Lmdb:
    """Source of the samples in one LMDB folder.

    The folder is opened for every read, which costs 20 us: LMDB allows neither to open a folder twice in a process nor to use
    it after a fork, so this keeps loader workers and a second data set of the same folder safe.
    """

    def __init__(self, folder: Path) -> None:
        """Read the number of samples, and count those beyond it. Raises ValueError for other layouts and damaged databases."""
        self.folder, self.notes = folder, dict[str, int]()
        self._check_whole()
        count, zeroth = self._values(COUNT, _key('image', -1))
        if count is None:
            raise ValueError(f'{folder}: has no key {COUNT.decode()!r}, so it is not an LMDB data set of texts')
        if not count.isdigit() or len(count) > MAX_DIGITS:
            raise ValueError(f'{folder}: the key {COUNT.decode()!r} holds {count[:20]!r}, which is not a number of samples')
        if zeroth is not None:
            raise ValueError(f'{folder}: numbers its samples from 0 (image-000000000); they must be numbered from 1')
        self.count = int(count)
        # A number that no file of this size can have would cost memory for each of its samples.
        if self.count * MIN_BYTES_PER_SAMPLE > (size := (folder / DATABASE).stat().st_size):
            raise ValueError(
                f'{folder}: {DATABASE} has {size} bytes, too few for the {self.count} samples that it claims to hold'
            )
        if beyond := self._count_beyond():
            self.notes[f'samples of {folder} are not used, since its num-samples is {self.count}'] = beyond

    def __len__(self) -> int:
        return self.count

    def check_files(self) -> None:
        """Do nothing: the constructor has opened the only file."""

    def name(self, index: int) -> str:
        """Return the folder and the key of a sample."""
        return f'{self.folder} {_key("image", index).decode()}'

    def read(self, draw: Draw) -> TextImage:
        """Return image and text. Raises SampleError."""
        try:
            # Decoding errors name the database and the key, since there is no file.
            data, text = self._values(_key('image', draw.index), _key('label', draw.index))
        except ValueError as error:
            raise SampleError(str(error)) from None
        if data is None or text is None:
            raise SampleError(f'{self.name(draw.index)}: is not in the database, which claims to hold {self.count} samples')
        try:
            return decode_image(data, self.name(draw.index)), text.decode()
        except UnicodeDecodeError as error:
            raise SampleError(f'{self.name(draw.index)}: its text is not UTF-8 (byte {error.start})') from None

    def _values(self, *keys: bytes) -> list[bytes | None]:
        """Return the values of `keys`, None for missing ones. Raises ValueError for a damaged database."""
        with self._open() as environment, environment.begin() as transaction:
            return [transaction.get(key) for key in keys]

    def _check_whole(self) -> None:
        """Raise ValueError for a file that was cut off: reading beyond its end would kill the process."""
        with self._open() as environment:
            page = environment.stat()['psize']
            size, whole = (self.folder / DATABASE).stat().st_size, (environment.info()['last_pgno'] + 1) * page
        if size < whole - UNWRITTEN * page:
            raise ValueError(f'{self.folder}: {DATABASE} is cut off: it has {size} of {whole} bytes')

    def _count_beyond(self) -> int:
        """Count the images that follow the last sample."""
        with self._open() as environment, environment.begin() as transaction, transaction.cursor() as cursor:
            following = cursor.iternext(values=False) if cursor.set_range(_key('image', self.count)) else ()
            return sum(1 for _ in takewhile(lambda key: key.startswith(b'image-'), following))

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Environment for reading. Raises ValueError for a damaged database, also from within the block."""
        lmdb, file = import_module('lmdb'), self.folder / DATABASE
        try:
            place = file.local() if isinstance(file, StorePath) else file
            # No lock file: the disk may be read-only. No read-ahead: samples are read in random order.
            environment = lmdb.open(str(place), subdir=False, readonly=True, lock=False, readahead=False, meminit=False)
            with environment:
                yield environment
        except lmdb.Error as error:
            raise ValueError(f'{self.folder}: is not a complete LMDB database ({error})') from None


def write_lmdb(source: Source, folder: Path) -> int:
    """Write the samples of a source to an LMDB folder and return their number; image files are copied unchanged.

    Raises SampleError for an unreadable image, FileExistsError if `folder` contains an LMDB data set, and ValueError if the
    package `lmdb` is not installed.
    """
    _check_lmdb_installed()
    if (folder / DATABASE).exists():
        raise FileExistsError(f'{folder}: holds an LMDB data set already')
    folder.mkdir(parents=True, exist_ok=True)
    with import_module('lmdb').open(str(folder), map_size=MAP_SIZE) as environment:
        for start in range(0, len(source), SAMPLES_PER_TRANSACTION):
            with environment.begin(write=True) as transaction:
                for index in range(start, min(start + SAMPLES_PER_TRANSACTION, len(source))):
                    data, text = _encode_sample(source, index)
                    transaction.put(_key('image', index), data)
                    transaction.put(_key('label', index), text.encode())
        with environment.begin(write=True) as transaction:
            # The count comes last, so that an interrupted conversion is not a data set.
            transaction.put(COUNT, str(len(source)).encode())
    return len(source)


def _encode_sample(source: Source, index: int) -> tuple[bytes, str]:
    """Return encoded image and text; an image without a file becomes PNG. Each image is decoded once, to find damaged ones."""
    image, text = source.read(Draw(index))
    file = Path(source.name(index))
    if file.is_file():
        return file.read_bytes(), text
    return cv2.imencode('.png', cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes(), text


def _find_databases(folder: Path) -> Source:
    """Return a source of all LMDB folders at or below `folder`. Raises FileNotFoundError if there are none."""
    folder = folder.parent if folder.name == DATABASE else folder
    folders = sorted(file.parent for file in folder.rglob(DATABASE))
    if not folders:
        raise FileNotFoundError(f'{folder}: contains no LMDB data set (no {DATABASE} at or below it)')
    return Shares([Lmdb(path) for path in folders], (1.0,) * len(folders))


def _key(kind: str, index: int) -> bytes:
    """Return the key of sample `index`, counted from 0; keys count from 1."""
    return f'{kind}-{index + 1:09}'.encode()


def _check_lmdb_installed() -> None:
    """Raise ValueError if the package `lmdb` is missing."""
    if find_spec('lmdb') is None:
        raise ValueError('LMDB data sets need the package lmdb: pip install "phalanx-vision[lmdb]"')
