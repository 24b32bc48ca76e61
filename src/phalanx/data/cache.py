"""Decoded pictures, kept for all ranks and loader workers of a node for as long as the run lives.

They lie in a file without a name, in memory or on a local disk, that the first rank of a node makes and all others open
through it. The kernel takes it back when the last of them has ended, however it ended: nothing is left behind, and no run finds
what another one wrote.

The file holds how much of it is used, a table of slots in which a hash of a picture's name finds it, and pixels, one picture
after the other. A picture is in its place before its slot says so: a writer that is killed leaves a gap, and no half picture.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import struct
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

Pixels = npt.NDArray[np.uint8]  # [H, W, 3], or a label map [H, W]

HEADER = struct.Struct('<QQ')  # bytes used, pictures
SLOT = struct.Struct('<16sQIII')  # hash of the name; where its pixels begin, 0 in an empty slot; height, width, channels or 0
BYTES_PER_SLOT = 4096  # of the whole file: so there are slots enough for any pictures above 37 x 37
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    gib: float
    """How large it may become, on each node. What comes first stays; what no longer fits is decoded each time."""
    folder: Path | None = None
    """A folder on a local disk, to keep it there; without one it is kept in memory."""

    def __post_init__(self) -> None:
        if not self.gib >= 0.001:
            raise ValueError(f'gib must be at least 0.001, got {self.gib}')


def check_room(options: CacheOptions) -> None:
    """Raises ValueError when this node cannot hold such a cache."""
    if sys.platform != 'linux':
        raise ValueError(f'train.cache: needs Linux, this is {sys.platform}')
    if options.folder is not None and not options.folder.is_dir():
        raise ValueError(f'train.cache.folder: there is no folder {options.folder}')
    room = shutil.disk_usage(options.folder).free if options.folder else psutil.virtual_memory().available
    if options.gib * GIB > room:
        where = f'the disk of {options.folder}' if options.folder else 'memory'
        raise ValueError(f'train.cache.gib: {options.gib:g} GiB are wanted, but {where} has only {room / GIB:.1f} GiB free')


class PictureCache:
    """Pictures by name, in a file that processes share. Picklable: unpickled on the same node, it is the same cache."""

    def __init__(self, file: int) -> None:
        """Takes over the descriptor `file`, of a file that `made` has made."""
        self._file = file
        weakref.finalize(self, os.close, file)
        found = os.fstat(file)
        self._size, self._slots = found.st_size, found.st_size // BYTES_PER_SLOT
        self.handle = f'/proc/{os.getpid()}/fd/{file}', found.st_dev, found.st_ino  # what `opened` takes

    def __reduce__(self) -> tuple[Any, ...]:
        return opened, self.handle

    def get(self, name: str) -> Pixels | None:
        """A copy of the picture of that name; None when it is not here."""
        with self._locked(fcntl.LOCK_SH):
            _, begin, shape = self._slot(_hash(name))
        if begin == 0:
            return None
        pixels = np.empty(shape, np.uint8)
        read = os.preadv(self._file, [pixels.data], begin)
        assert read == pixels.nbytes
        return pixels

    def put(self, name: str, pixels: Pixels) -> None:
        """Keeps a copy of `pixels` under that name, if there is room."""
        with self._locked(fcntl.LOCK_EX):
            begin, count = HEADER.unpack(os.pread(self._file, HEADER.size, 0))
            begin = begin or HEADER.size + self._slots * SLOT.size
            if begin + pixels.nbytes > self._size or count + 1 >= self._slots:
                return
            os.pwrite(self._file, HEADER.pack(begin + pixels.nbytes, count + 1), 0)
        try:
            written = os.pwrite(self._file, np.ascontiguousarray(pixels).data, begin)
        except OSError:  # a disk that is full in spite of `check_room`
            return
        with self._locked(fcntl.LOCK_EX):
            place, taken, _ = self._slot(_hash(name))
            if written == pixels.nbytes and not taken:  # another process may have been faster
                os.pwrite(self._file, SLOT.pack(_hash(name), begin, *pixels.shape, *[0] * (3 - pixels.ndim)), place)

    def _slot(self, name: bytes) -> tuple[int, int, list[int]]:
        """The place of the slot with that hash, or of the empty one for it; where the pixels begin, or 0; their shape."""
        number = int.from_bytes(name) % self._slots
        while True:
            place = HEADER.size + number * SLOT.size
            found, begin, *shape = SLOT.unpack(os.pread(self._file, SLOT.size, place))
            if begin == 0 or found == name:
                return place, begin, [side for side in shape if side]
            number = (number + 1) % self._slots

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        """Keeps other processes out meanwhile; the kernel unlocks for one that is killed."""
        fcntl.lockf(self._file, kind)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def _hash(name: str) -> bytes:
    return hashlib.blake2b(os.fsencode(name), digest_size=16).digest()


def made(options: CacheOptions) -> PictureCache:
    """An empty one. Raises OSError, when the disk is full for instance: there, all room is taken at once."""
    size = int(options.gib * GIB)
    if options.folder is None:
        file = os.memfd_create('phalanx-cache')
        os.truncate(file, size)
    else:
        with tempfile.TemporaryFile(dir=options.folder) as nameless:
            file = os.dup(nameless.fileno())
        os.posix_fallocate(file, 0, size)
    return PictureCache(file)


def opened(path: str, device: int, inode: int) -> PictureCache:
    """The cache that another process of this node has made, by its handle. Raises OSError."""
    file = os.open(path, os.O_RDWR)
    found = os.fstat(file)
    if (found.st_dev, found.st_ino) != (device, inode):  # a process of another container may have that number here
        os.close(file)
        raise OSError(errno.ESTALE, 'not the cache of train.cache: the ranks of a node must see each other in /proc', path)
    return PictureCache(file)


def of_node(options: CacheOptions | None) -> PictureCache | None:
    """The one cache of all ranks of this node; all ranks of the run call it. Raises OSError."""
    if options is None:
        return None
    from phalanx.parallel import dist  # torch, which `phalanx serve` reads images without

    own = made(options) if dist.local_rank() == 0 else None
    handles = dist.gather_objects(own and own.handle)
    return own or opened(*handles[dist.rank() - dist.local_rank()])  # nodes hold consecutive ranks


_USED: ContextVar[PictureCache | None] = ContextVar('used', default=None)


@contextlib.contextmanager
def using(cache: PictureCache | None) -> Iterator[None]:
    """Within this context `kept` keeps pictures in `cache`; None: nowhere."""
    before = _USED.set(cache)
    try:
        yield
    finally:
        _USED.reset(before)


def kept(name: str, read: Callable[[], Pixels]) -> Pixels:
    """What `read` gives, which `name` must distinguish from all others; read at most once where a cache has room."""
    cache = _USED.get()
    if cache is None:
        return read()
    pixels = cache.get(name)
    if pixels is None:
        pixels = read()
        cache.put(name, pixels)
    return pixels
