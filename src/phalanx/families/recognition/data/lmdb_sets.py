"""LMDB data sets in the layout of the field: MJSynth, SynthText and the benchmarks are handed around in it.

Keys are `num-samples` and, for samples from 1 on, `image-000000001`, an encoded image, and `label-000000001`, UTF-8 text.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import cv2

from phalanx.data.folders import check_folder
from phalanx.data.image import decoded
from phalanx.data.mixing import Shares, shares_of
from phalanx.data.samples import Draw, SampleError, Split
from phalanx.families.recognition.data.source import Source, TextImage

DATABASE = 'data.mdb'  # the file in every LMDB folder
COUNT = b'num-samples'
AT_A_TIME = 1000  # samples that a conversion writes in one transaction
MOST_DIGITS = 9  # of the number of samples: keys have room for no more
LEAST_BYTES = 32  # of a sample: its two keys alone take more
MOST_BYTES = 2**40  # of addresses that a conversion asks for; the disk gives what it needs


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
        self.root, self.folders = root, {'train': train, 'eval': eval}
        self.shares = {'train': shares_of(train, train_shares, 'training folders'), 'eval': (1.0,) * len(eval)}

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
        """Raises ValueError when it is of another layout, or damaged."""
        self.folder = folder
        (count,) = self._values(COUNT)
        if count is None:
            raise ValueError(f'{folder}: has no key {COUNT.decode()!r}, so it is not an LMDB data set of texts')
        if not count.isdigit() or len(count) > MOST_DIGITS:
            raise ValueError(f'{folder}: the key {COUNT.decode()!r} holds {count[:20]!r}, which is not a number of samples')
        self.count = int(count)
        if self.count * LEAST_BYTES > (size := (folder / DATABASE).stat().st_size):
            raise ValueError(
                f'{folder}: {DATABASE} has {size} bytes, too few for the {self.count} samples that it claims to hold'
            )

    def __len__(self) -> int:
        return self.count

    def check_files(self) -> None:
        """The one there is was opened when it was made."""

    def name(self, index: int) -> str:
        return f'{self.folder} {_key("image", index).decode()}'

    def read(self, draw: Draw) -> TextImage:
        try:
            data, text = self._values(_key('image', draw.index), _key('label', draw.index))
        except ValueError as error:
            raise SampleError(str(error)) from None
        if data is None or text is None:
            raise SampleError(f'{self.name(draw.index)}: is not in the database, which claims to hold {self.count} samples')
        try:
            return decoded(data, self.name(draw.index)), text.decode()
        except UnicodeDecodeError as error:
            raise SampleError(f'{self.name(draw.index)}: its text is not UTF-8 (byte {error.start})') from None

    def _values(self, *keys: bytes) -> list[bytes | None]:
        """Raises ValueError when the database is damaged."""
        lmdb = import_module('lmdb')
        try:
            # No lock file: the data may lie on a read-only disk. No read-ahead: samples are read in random order.
            environment = lmdb.open(str(self.folder), readonly=True, lock=False, readahead=False, meminit=False)
            with environment, environment.begin() as transaction:
                return [transaction.get(key) for key in keys]
        except lmdb.Error as error:
            raise ValueError(f'{self.folder}: is not a complete LMDB database ({error})') from None


def write_lmdb(source: Source, folder: Path) -> int:
    """Writes the samples of a source as an LMDB folder and returns how many; image files are copied as they are.

    Raises SampleError for an image that cannot be read, FileExistsError when `folder` holds an LMDB data set already, and
    ValueError when the package `lmdb` is not installed.
    """
    _check_installed()
    if (folder / DATABASE).exists():
        raise FileExistsError(f'{folder}: holds an LMDB data set already')
    folder.mkdir(parents=True, exist_ok=True)
    with import_module('lmdb').open(str(folder), map_size=MOST_BYTES) as environment:
        for start in range(0, len(source), AT_A_TIME):
            with environment.begin(write=True) as transaction:
                for index in range(start, min(start + AT_A_TIME, len(source))):
                    data, text = _encoded(source, index)
                    transaction.put(_key('image', index), data)
                    transaction.put(_key('label', index), text.encode())
        with environment.begin(write=True) as transaction:
            transaction.put(COUNT, str(len(source)).encode())  # last: what was broken off is not a data set
    return len(source)


def _encoded(source: Source, index: int) -> tuple[bytes, str]:
    """The bytes of an image file and its text; what has no file becomes PNG. Every image is decoded, so that all can be."""
    image, text = source.read(Draw(index))
    file = Path(source.name(index))
    if file.is_file():
        return file.read_bytes(), text
    return cv2.imencode('.png', cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes(), text


def _below(folder: Path) -> Source:
    """The LMDB folders at or below `folder`, one after the other. Raises FileNotFoundError when there are none."""
    found = sorted(file.parent for file in folder.rglob(DATABASE))
    if not found:
        raise FileNotFoundError(f'{folder}: holds no LMDB data set (no {DATABASE} at or below it)')
    return Shares([Lmdb(place) for place in found], (1.0,) * len(found))


def _key(kind: str, index: int) -> bytes:
    return f'{kind}-{index + 1:09}'.encode()


def _check_installed() -> None:
    if find_spec('lmdb') is None:
        raise ValueError('LMDB data sets need the package lmdb: pip install "phalanx-vision[lmdb]"')
