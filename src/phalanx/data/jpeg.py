"""JPEG decoding by libjpeg-turbo, with the same pixels as OpenCV, but with its warnings as errors.

OpenCV fills missing parts with grey and reports nothing.
"""

import re
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

Pixels = npt.NDArray[np.uint8]

BEGINNING = b'\xff\xd8'
FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers of segments with the size (SOF)
EXIF, SCAN, END = 0xE1, 0xDA, 0xD9
MARKER = re.compile(rb'\xff[^\x00\x01\xd0-\xd7\xff]')  # among compressed pixels: FF followed by none of theirs
ORIENTATION = 0x0112
# Each scan goes over all pixels again, even one of a few bytes. Encoders write about ten.
MOST_SCANS = 100
# An 8 x 8 block takes at least a bit, and subsampled ones count for four: a flat progressive image comes near this.
MOST_PIXELS_PER_BYTE = 512
# Warnings that cost no pixel: padding at the end, and header fields that decoders do not need.
HARMLESS = re.compile(r'extraneous bytes before marker 0xd9|Invalid SOS parameters|JFIF|Adobe')


class Header(NamedTuple):
    size: tuple[int, int] | None  # width and height as stored; None if the header has none
    orientation: int  # of EXIF, 1 to 8; 1 is upright
    is_whole: bool  # the end marker is present
    scans: int


def read_header(data: bytes) -> Header:
    """Read the header of a JPEG file: size, EXIF orientation, and the number of scans after it."""
    size, orientation, place = None, 1, 2
    # Segments carry their length, so that no marker of a thumbnail inside one is mistaken for the image's.
    while place + 1 < len(data) and data[place] == 0xFF and (marker := data[place + 1]) != SCAN:
        if marker == 0xFF:  # padding before a marker
            place += 1
            continue
        after = place + 2 + int.from_bytes(data[place + 2 : place + 4])
        if marker in FRAMES:
            size = int.from_bytes(data[place + 7 : place + 9]), int.from_bytes(data[place + 5 : place + 7])
        if marker == EXIF and data[place + 4 : place + 10] == b'Exif\0\0':
            orientation = read_orientation(data[place + 10 : after])
        place = after
    # Count occurrences first, which is fast; walk through the markers only if there are suspiciously many.
    scans = data.count(b'\xff\xda', place)
    return Header(size, orientation, data.find(b'\xff\xd9', place) >= 0, scans if scans <= MOST_SCANS else _scans(data, place))


def _scans(data: bytes, place: int) -> int:
    """Number of scans from `place` to the end of the image; data appended by other programs may look like more."""
    scans = 0
    while (match := MARKER.search(data, place)) and (marker := data[match.start() + 1]) != END:
        scans += marker == SCAN
        place = match.end() + int.from_bytes(data[match.end() : match.end() + 2])
    return scans


def read_orientation(tiff: bytes) -> int:
    """Orientation tag in EXIF data, which have the layout of TIFF; 1 when there is none or it is invalid."""
    tiff = tiff.removeprefix(b'Exif\0\0')
    order = {b'II': 'little', b'MM': 'big'}.get(tiff[:2])
    if order not in ('little', 'big'):
        return 1

    def value(start: int, length: int) -> int:
        return int.from_bytes(tiff[start : start + length], 'little' if order == 'little' else 'big')

    first = value(4, 4) + 2
    # The first directory of the TIFF structure: entries of 12 bytes, each with tag, type, count and value.
    for start in range(first, min(first + 12 * value(first - 2, 2), len(tiff)), 12):
        if value(start, 2) == ORIENTATION:
            return value(start + 8, 2) if value(start + 8, 2) in range(1, 9) else 1
    return 1


def decode_jpeg(data: bytes, header: Header) -> Pixels:
    """Decode the bytes of a file with header `header` to upright pixels [H, W, 3] RGB. Raises ValueError."""
    if header.scans > MOST_SCANS:
        raise ValueError(f'has {header.scans} scans; encoders write about ten, and each takes the time of a whole image')
    if header.size is not None and header.size[0] * header.size[1] > MOST_PIXELS_PER_BYTE * len(data):
        raise ValueError(f'claims to be {header.size[0]} x {header.size[1]} pixels large, which {len(data)} bytes cannot hold')
    try:
        # Strict: warnings of libjpeg are errors, unless they cost no pixel.
        pixels = simplejpeg.decode_jpeg(data, 'RGB')
    except ValueError as error:
        if not HARMLESS.search(str(error)):
            raise ValueError(f'is damaged: {error}') from None
        pixels = simplejpeg.decode_jpeg(data, 'RGB', strict=False)
    return turn_upright(pixels, header.orientation)


def turn_upright(pixels: Pixels, orientation: int) -> Pixels:
    """Turn `pixels` [H, W, 3] by the EXIF `orientation` (1 to 8)."""
    # Orientations from 5 on are mirrored at the diagonal, then flipped.
    if orientation >= 5:
        pixels = cv2.transpose(pixels).astype(pixels.dtype, copy=False)
    flips = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}
    return cv2.flip(pixels, flips[orientation]).astype(pixels.dtype, copy=False) if orientation in flips else pixels
