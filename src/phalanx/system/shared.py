"""Unnamed files of a process that others of its node open, and objects in them.

The kernel frees such a file when the last process that has it open has ended, for whatever reason: nothing is left behind.
"""

import errno
import mmap
import os
import pickle
import struct
import sys
import weakref
from typing import Any, Self

Handle = tuple[str, int, int]  # its path in /proc, device and inode

SIZES = struct.Struct('<QQ')  # bytes of the pickle, number of buffers behind it
ALIGNMENT = 64


def handle_of(file: int) -> Handle:
    """Handle of the open file `file`, for `open_handle` in other processes of this node."""
    status = os.fstat(file)
    return f'/proc/{os.getpid()}/fd/{file}', status.st_dev, status.st_ino


def open_handle(handle: Handle, flags: int = os.O_RDWR) -> int:
    """Open the file of another process of this node. Raises OSError."""
    path, device, inode = handle
    file = os.open(path, flags)
    status = os.fstat(file)
    if (status.st_dev, status.st_ino) != (device, inode):  # a process of another container may have that number here
        os.close(file)
        raise OSError(errno.ESTALE, 'not the file of that process: the ranks of a node must see each other in /proc', path)
    return file


class Shared:
    """Object in an unnamed file in memory, whose arrays the processes of a node map without a copy. Read-only.

    Pickle with buffers out of band (PEP 574): the file holds a pickle of the object without the content of its arrays, and
    each array by itself, from where it is mapped.
    """

    def __init__(self, file: int) -> None:
        """Take ownership of the descriptor `file`."""
        self._file = file
        weakref.finalize(self, os.close, file)
        self.handle = handle_of(file)

    @classmethod
    def of(cls, value: object) -> Self | None:
        """Put `value` into a file; None if this system has no such files, or if a part of it cannot be pickled."""
        if sys.platform != 'linux':
            return None
        buffers: list[pickle.PickleBuffer] = []
        try:
            head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        except (pickle.PicklingError, TypeError, AttributeError):  # parts of a plug-in: lambdas, open files
            return None
        views = [buffer.raw() for buffer in buffers]
        file = os.memfd_create('phalanx-shared')
        sizes = struct.pack(f'<{len(views)}Q', *(view.nbytes for view in views))
        place = _write(file, SIZES.pack(len(head), len(views)) + sizes + head, 0)
        for view in views:
            place = _write(file, view, place)
        os.ftruncate(file, place)
        return cls(file)

    @classmethod
    def opened(cls, handle: Handle) -> Self:
        """Open the object of another process. Raises OSError."""
        return cls(open_handle(handle, os.O_RDONLY))

    def load(self) -> Any:
        """Return the object; its arrays are views of the file, which lives as long as they do."""
        whole = memoryview(mmap.mmap(self._file, 0, access=mmap.ACCESS_READ))
        length, count = SIZES.unpack_from(whole)
        sizes = struct.unpack_from(f'<{count}Q', whole, SIZES.size)
        begin = SIZES.size + 8 * count
        place, views = _aligned(begin + length), []
        for size in sizes:
            views.append(whole[place : place + size])
            place = _aligned(place + size)
        return pickle.loads(whole[begin : begin + length], buffers=views)  # noqa: S301 - a file of our own processes


def _write(file: int, data: bytes | memoryview, place: int) -> int:
    """Write all of `data` at `place`; return the place of what follows."""
    rest = memoryview(data)
    end = place + rest.nbytes
    while rest.nbytes:
        rest = rest[os.pwrite(file, rest, end - rest.nbytes) :]
    return _aligned(end)


def _aligned(place: int) -> int:
    return -(-place // ALIGNMENT) * ALIGNMENT
