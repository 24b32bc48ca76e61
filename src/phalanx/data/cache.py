"""Cache of decoded pictures, shared by all ranks and loader workers of a node for the lifetime of a run.

The cache is an unnamed file, in memory or on a local disk, that the first rank of a node creates and all others open through
/proc. The kernel frees it when the last process has ended, for whatever reason: nothing is left behind, and no run reads what
another one wrote.

Layout of the file: a header with the bytes used, a hash table of slots (hash of the picture's name -> place and shape), pixels.
The pixels are written before their slot: a writer that is killed leaves a gap, never half a picture.
"""

import contextlib
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

from phalanx.system.groups import memory_of_host
from phalanx.system.shared import Handle, handle_of, open_handle

Pixels = npt.NDArray[np.uint8]  # [H, W, 3], or a label map [H, W]

HEADER = struct.Struct('<QQ')  # bytes used, pictures
SLOT = struct.Struct('<16sQIII')  # hash of the name; where its pixels begin, 0 in an empty slot; height, width, channels or 0
BYTES_PER_SLOT = 4096  # of the whole file: enough slots for pictures above 37 x 37 pixels
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    gib: float
    """Largest size, per node. The first pictures stay; those that no longer fit are decoded each time."""
    folder: Path | None = None
    """Folder on a local disk for the cache (default: in memory)."""

    def __post_init__(self) -> None:
        if not self.gib >= 0.001:
            raise ValueError(f'gib must be at least 0.001, got {self.gib}')


def check_room(options: CacheOptions) -> None:
    """Raise ValueError when this node has no room for such a cache."""
    if sys.platform != 'linux':
        raise ValueError(f'train.cache: needs Linux, this is {sys.platform}')
    if options.folder is not None and not options.folder.is_dir():
        raise ValueError(f'train.cache.folder: there is no folder {options.folder}')
    room = (
        shutil.disk_usage(options.folder).free if options.folder else min(psutil.virtual_memory().available, memory_of_host())
    )
    if options.gib * GIB > room:
        where = f'the disk of {options.folder}' if options.folder else 'memory'
        raise ValueError(f'train.cache.gib: {options.gib:g} GiB requested, but {where} has only {room / GIB:.1f} GiB free')


class PictureCache:
    """Pictures by name, in a file that processes share. Picklable: unpickled on the same node, it is the same cache."""

    def __init__(self, file: int) -> None:
        """Take ownership of the descriptor `file`, of a file from `create_cache`."""
        self._file = file
        weakref.finalize(self, os.close, file)
        self._size = os.fstat(file).st_size
        self._slots = self._size // BYTES_PER_SLOT
        self.handle = handle_of(file)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_cache, (self.handle,)

    def get(self, name: str) -> Pixels | None:
        """Copy of the picture `name`; None when it is not in the cache."""
        with self._locked(fcntl.LOCK_SH):
            _, begin, shape = self._slot(_hash(name))
        if begin == 0:
            return None
        # Outside of the lock: a published picture never changes or moves.
        pixels = np.empty(shape, np.uint8)
        read = os.preadv(self._file, [pixels.data], begin)
        assert read == pixels.nbytes
        return pixels

    def put(self, name: str, pixels: Pixels) -> None:
        """Store a copy of `pixels` as `name`, if there is room."""
        # Reserve the space under the lock, write the pixels without it, publish the slot under the lock again.
        with self._locked(fcntl.LOCK_EX):
            begin, count = HEADER.unpack(os.pread(self._file, HEADER.size, 0))
            begin = begin or HEADER.size + self._slots * SLOT.size
            # Full: the first pictures stay. At least one slot stays empty, at which `_slot` ends its search.
            if begin + pixels.nbytes > self._size or count + 1 >= self._slots:
                return
            os.pwrite(self._file, HEADER.pack(begin + pixels.nbytes, count + 1), 0)
        try:
            written = os.pwrite(self._file, np.ascontiguousarray(pixels).data, begin)
        except OSError:  # a disk that is full in spite of `check_room`
            return
        with self._locked(fcntl.LOCK_EX):
            place, existing, _ = self._slot(_hash(name))
            if written == pixels.nbytes and not existing:  # another process may have been faster
                os.pwrite(self._file, SLOT.pack(_hash(name), begin, *pixels.shape, *[0] * (3 - pixels.ndim)), place)

    def _slot(self, name: bytes) -> tuple[int, int, list[int]]:
        """Slot of the hash `name`, or the empty one for it (open addressing): place, pixels' start (0: empty), shape."""
        # Open addressing with linear probing: start at the hash, go on to the next slot while another name has it.
        number = int.from_bytes(name) % self._slots
        while True:
            place = HEADER.size + number * SLOT.size
            stored, begin, *shape = SLOT.unpack(os.pread(self._file, SLOT.size, place))
            if begin == 0 or stored == name:
                return place, begin, [side for side in shape if side]
            number = (number + 1) % self._slots

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        """Lock the file against other processes; the kernel unlocks it when a process is killed."""
        fcntl.lockf(self._file, kind)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def _hash(name: str) -> bytes:
    return hashlib.blake2b(os.fsencode(name), digest_size=16).digest()


def create_cache(options: CacheOptions) -> PictureCache:
    """Create an empty cache. Raises OSError, for a full disk among others: disk space is allocated at once."""
    size = int(options.gib * GIB)
    if options.folder is None:
        file = os.memfd_create('phalanx-cache')
        os.truncate(file, size)
    else:
        # The file has no name, in memory or on disk: it lives as long as a process has it open.
        with tempfile.TemporaryFile(dir=options.folder) as nameless:
            file = os.dup(nameless.fileno())
        # Allocated now: a disk that fills up later would kill the ranks with SIGBUS.
        os.posix_fallocate(file, 0, size)
    return PictureCache(file)


def open_cache(handle: Handle) -> PictureCache:
    """Open the cache of another process of this node. Raises OSError."""
    return PictureCache(open_handle(handle))


def node_cache(options: CacheOptions | None) -> PictureCache | None:
    """Create or open the cache of this node. Collective: all ranks of the run call it. Raises OSError."""
    if options is None:
        return None
    from phalanx.parallel import dist  # torch, which `phalanx serve` reads images without

    own = create_cache(options) if dist.local_rank() == 0 else None
    # The first rank of each node creates the cache; the others open it by its handle.
    handles = dist.gather_objects(own and own.handle)
    return own or open_cache(handles[dist.rank() - dist.local_rank()])  # nodes hold consecutive ranks


_USED: ContextVar[PictureCache | None] = ContextVar('used', default=None)


@contextlib.contextmanager
def use_cache(cache: PictureCache | None) -> Iterator[None]:
    """Context in which `read_cached` uses `cache`; None: no cache."""
    before = _USED.set(cache)
    try:
        yield
    finally:
        _USED.reset(before)


def read_cached(name: str, read: Callable[[], Pixels]) -> Pixels:
    """Return the pixels `name` from the cache in use, else from `read`, and store them. `name` identifies them uniquely."""
    cache = _USED.get()
    if cache is None:
        return read()
    pixels = cache.get(name)
    if pixels is None:
        pixels = read()
        cache.put(name, pixels)
    return pixels
