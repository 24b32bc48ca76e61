"""Decoding of ordinary PNG files (8-bit colour or grey) by libspng, in 0.6 to 0.8 of the time of OpenCV and Pillow."""

import zlib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from mmap import mmap
from typing import Literal

import numpy as np
import numpy.typing as npt

from phalanx.data.jpeg import read_orientation

SIGNATURE = b'\x89PNG\r\n\x1a\n'
MODES = {b'\x08\x02\0\0\0': 'RGB', b'\x08\0\0\0\0': 'L'}  # of a header: depth, kind of colour, two zeros, not interlaced
SPNG = import_module('pyspng') if find_spec('pyspng') else None  # not available for every version of Python


def decode_png(data: bytes, mode: Literal['RGB', 'L']) -> npt.NDArray[np.uint8] | None:
    """Decode the bytes of a file: [H, W, 3], or [H, W] in mode L.

    None for other files, other modes and damaged files: another decoder then decodes them or reports the error. The caller
    checks the size first.
    """
    if SPNG is None or not data.startswith(SIGNATURE) or MODES.get(data[24:29]) != mode or not _is_sound(data):
        return None
    try:
        pixels: npt.NDArray[np.uint8] = SPNG.load(data, mode)
    except RuntimeError:
        return None
    return pixels


def read_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in the header of a PNG file (IHDR comes first); None for other bytes."""
    is_png = data.startswith(SIGNATURE) and data[12:16] == b'IHDR'
    return (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) if is_png else None


def bit_depth(data: bytes) -> int:
    """Bits per value, from the header."""
    return data[24] if len(data) > 24 else 8


def read_png_orientation(data: bytes | mmap) -> int:
    """EXIF orientation, 1 to 8; 1 is upright."""
    for start, end in _chunks(data):
        if data[start + 4 : start + 8] == b'eXIf':
            return read_orientation(data[start + 8 : end])
    return 1


def is_complete(data: bytes) -> bool:
    """True if all chunks of a PNG file are there, up to the last one (other programs append to files).

    A decoder may trust the length in a chunk and allocate that much memory.
    """
    return any(data[start + 4 : start + 8] == b'IEND' for start, _ in _chunks(data))


def _is_sound(data: bytes) -> bool:
    """True if all chunks are there with correct checksums, which pyspng does not verify."""
    view = memoryview(data)
    # A flipped bit in compressed pixels would otherwise show up as wrong colours only.
    sums = (zlib.crc32(view[start + 4 : end]) == int.from_bytes(view[end : end + 4]) for start, end in _chunks(data))
    return is_complete(data) and all(sums)


def _chunks(data: bytes | mmap) -> Iterator[tuple[int, int]]:
    """Start of each complete chunk and of its checksum, up to the last chunk or the first incomplete one."""
    # A chunk is a length, a type, its data and a checksum (4 bytes each, except for the data).
    start = len(SIGNATURE)
    while (end := start + 8 + int.from_bytes(data[start : start + 4])) + 4 <= len(data):
        yield start, end
        if data[start + 4 : start + 8] == b'IEND':
            return
        start = end + 4
